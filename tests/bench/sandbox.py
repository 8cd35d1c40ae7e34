"""What one call of the Python tool takes, warm, until the worker has its answer; near idle, or the clock says nothing.

    session:  first call (fork, confine, run) │ next │ next │ close        SESSIONS of them a round, one after another

The CPU time beside it is that of all processes together, and says more where the machine is busy. Root can have the
times of an idle one there: `chrt --fifo 10 python -m tests.bench sandbox`.
"""

import asyncio
import os
import statistics
import time
from pathlib import Path

from tests.bench.result import ROUNDS, Result
from tests.bench.server import Server
from workers.sandbox import Limits, PythonSandbox, bubblewrap, launch

LIMITS = Limits(seconds=10.0, memory_mb=256, output_bytes=4096)
SESSIONS, CALLS = 30, 3
TRIVIAL = ("print(6 * 7)", 12.0)
SYMPY = ("import sympy\nx = sympy.symbols('x')\nprint(sympy.solve(x**2 - 5*x + 6, x), sympy.expand((x + 1)**3))", 25.0)


def measure(_: Server) -> list[Result]:
    return asyncio.run(_measure())


async def _measure() -> list[Result]:
    results = []
    for within in ([], bubblewrap.command()) if bubblewrap.command() else ([],):
        for name, (code, most), modules in (("trivial call", TRIVIAL, []), ("call with sympy", SYMPY, ["sympy"])):
            sandbox = PythonSandbox(LIMITS, concurrency=1, preload=modules)
            if within:
                sandbox._server = await launch.launch(LIMITS, modules, within)
            async with sandbox:
                results += await _rounds(f"{name}, {sandbox.confinement}", sandbox, code, most)
    return results


async def _rounds(name: str, sandbox: PythonSandbox, code: str, most: float) -> list[Result]:
    await _round(sandbox, code)  # warm
    firsts, nexts, cpu = zip(*[await _round(sandbox, code) for _ in range(ROUNDS)], strict=True)
    cost = f"CPU {statistics.median(cpu):.1f} ms a call, a third of them first ones"
    return [
        _result(f"{name}: a session's first", firsts, most, f"; {cost}"),
        _result(f"{name}: its following ones", nexts, most, ""),
    ]


async def _round(sandbox: PythonSandbox, code: str) -> tuple[float, float, float]:
    """Median milliseconds of first calls and of following ones, and CPU milliseconds of a call."""
    firsts, nexts, used = [], [], await _cpu_seconds(sandbox)
    for _ in range(SESSIONS):
        async with sandbox.session() as python:
            for number in range(CALLS):
                begun = time.perf_counter()
                result = await python.run(code)
                (nexts if number else firsts).append(1e3 * (time.perf_counter() - begun))
                if result.error:
                    raise RuntimeError(f"the call failed: {result}")
    used = await _cpu_seconds(sandbox) - used
    return statistics.median(firsts), statistics.median(nexts), 1e3 * used / (SESSIONS * CALLS)


async def _cpu_seconds(sandbox: PythonSandbox) -> float:
    """This process's, the fork server's (or bubblewrap's, and those below it) and the children's that it has reaped."""
    await asyncio.sleep(0.05)
    total, below = time.process_time(), [(await sandbox.server()).process.pid]
    while below:
        pid = below.pop()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        below += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return total


def _result(name: str, rounds: tuple[float, ...], most: float, more: str) -> Result:
    median = statistics.median(rounds)
    value = f"{median:.1f} ms ({min(rounds):.1f} - {max(rounds):.1f}){more}"
    return Result(f"Python tool, {name}", value, f"<= {most:g} ms near idle", median <= most, rounds)
