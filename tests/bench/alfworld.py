"""What ALFWorld's games take, one process a game: to begin one, anew and again, and to go a step.

    six canonical games, one of each task type, made here ─▶ the expert's commands, at most STEPS, one after another

CPU time is that of the game's own process, and says more where the machine is busy; so does a machine without load.
"""

import asyncio
import importlib.util
import os
import statistics
import tempfile
import time
from pathlib import Path

from tests.bench.result import Result

STEPS, TARGET = 50, 20.0


def measure() -> list[Result]:
    if importlib.util.find_spec("alfworld") is None:
        return [Result("ALFWorld", "not measured: pip install 'headrace[alfworld]'")]
    from workers.environments.alfworld.generate import KINDS, generate

    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), {"train": len(KINDS)}, KINDS, 20, 1)
        return asyncio.run(_played(sorted(Path(folder).rglob("game.tw-pddl"))))


async def _played(paths: list[Path]) -> list[Result]:
    from workers.environments.alfworld.games import Games

    games, rounds, cpu, begun = Games(), [], [], {"anew": [], "again": []}
    try:
        await (await games.begin(str(paths[0]), 1))[0].step("look")  # the server has started
        for again in ("anew", "again"):
            for path in paths:
                started = time.perf_counter()
                game, seen = await games.begin(str(path), 1)
                begun[again].append(time.perf_counter() - started)
                before, started, steps = _cpu_s(game), time.perf_counter(), 0
                while not seen.won and steps < STEPS:
                    seen, steps = await game.step(seen.advice or "look"), steps + 1
                rounds.append(steps / (time.perf_counter() - started))
                cpu.append(1e3 * (_cpu_s(game) - before) / steps)
                game.end()
    finally:
        games.close()
    speed = statistics.median(rounds)
    value = f"{speed:.0f} ({min(rounds):.0f} - {max(rounds):.0f}); CPU {statistics.median(cpu):.1f} ms a step"
    return [
        Result("ALFWorld, steps/s of one process", value, f">= {TARGET:g}", speed >= TARGET, tuple(rounds)),
        *(
            Result(f"ALFWorld, a game begun {how}", f"{statistics.median(found):.2f} s", rounds=tuple(found))
            for how, found in begun.items()
        ),
    ]


def _cpu_s(game) -> float:
    """Of the game's process, until now."""
    fields = Path(f"/proc/{game.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
