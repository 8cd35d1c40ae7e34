"""What 256 episodes at once cost the worker that plays them: CPU time of its process.

    python -m tests.bench.episodes LABEL     the scripted server: 200 log-probs after 2 s, whatever is asked
    python -m workers run.toml               the real worker: template, requests, masks, Reserve and Occupy

Four turns each, so 32 episodes and 128 requests a second while nothing is short of CPU. On a machine that is, fewer
come through: so the CPU time of a request is measured, and what 128 of them would take.
"""

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import ClassVar

from pipeline.config import Config
from pipeline.config_file import to_toml
from pipeline.coordinator import Coordinator
from tests.bench.result import Result
from tests.bench.server import Server
from tests.fixtures_sglang import make_model
from tests.workers.fake_sglang import FakeSGLang, answer
from workers.environments import Environment, Turn

EPISODES, TURNS, REPLY_S, LOGPROBS = 256, 4, 2.0, 200
PROMPTS, SECONDS, TARGET = 2000, 20, 0.15
START_S = 180  # until as many episodes have ended as begin at once, on a busy machine
DIGEST = "0123456789abcdef" * 4


class FourTurns(Environment):
    """The first ones of a worker begin one by one, so that replies come evenly from then on and not 256 at once."""

    begun: ClassVar[itertools.count] = itertools.count()

    async def reset(self, prompt, seed):
        await asyncio.sleep(max(0, 1 - next(self.begun) / EPISODES) * TURNS * REPLY_S)
        self.left = TURNS
        return Turn([{"role": "user", "content": prompt["question"]}])

    async def step(self, reply):
        self.left -= 1
        if not self.left:
            return Turn([], reward=1.0, done=True)
        return Turn([{"role": "tool", "content": "the tool says 42"}])


def measure(server: Server) -> list[Result]:
    run = f"episodes-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        make_model(Path(folder) / "model", ["12 * 7 = ?"], context=2048)
        settings = _settings(run, Path(folder))
        (Path(folder) / "run.toml").write_text(to_toml(settings))
        engine = _start("tests.bench.episodes", f"{run}:0:{DIGEST[:16]}", stdout=subprocess.PIPE)
        try:
            c = _ledger(server, settings, engine.stdout.readline().strip())
            worker = _start("workers", f"{folder}/run.toml", "--redis", server.url, stderr=subprocess.DEVNULL)
            try:
                return [_result(server, *_watch(c, worker))]
            finally:
                worker.send_signal(signal.SIGTERM)
                worker.wait(30)
        finally:
            engine.terminate()
            engine.wait(30)


def _watch(c: Coordinator, worker: subprocess.Popen) -> tuple[float, float]:
    """CPU seconds of the worker for one request, and requests a second, once all episodes are under way."""
    until = time.monotonic() + START_S
    while (placed := c.status()["placed"]) < EPISODES:
        if worker.poll() is not None:
            raise RuntimeError(f"the worker ended with {worker.returncode}")
        if time.monotonic() > until:
            raise RuntimeError(f"expected {EPISODES} episodes placed within {START_S} s, found {placed}")
        time.sleep(0.2)
    placed, cpu, begun = c.status()["placed"], _cpu_s(worker.pid), time.monotonic()
    time.sleep(SECONDS)
    requests = (c.status()["placed"] - placed) * TURNS
    return (_cpu_s(worker.pid) - cpu) / requests, requests / (time.monotonic() - begun)


def _result(server: Server, cpu_s: float, rate: float) -> Result:
    share = cpu_s * EPISODES / REPLY_S
    measured = f"{1e3 * cpu_s:.2f} ms of CPU a request; measured at {rate:.0f} requests/s; {server.conditions()}"
    return Result(
        f"{EPISODES} episodes in one worker, {TURNS} turns, {REPLY_S:g} s and {LOGPROBS} log-probs a reply",
        f"{share:.1%} of a core ({measured})",
        f"< {TARGET:.0%}",
        share < TARGET,
        (cpu_s, rate),
    )


def _settings(run: str, folder: Path) -> Config:
    return Config.model_validate(
        {
            "run": {"name": run, "folder": folder},
            "model": {"path": folder / "model"},
            "data": {"tasks": {"chain_sum": {}}},
            "environment": {"name": "tests.bench.episodes:FourTurns", "max_turns": TURNS},
            "rollout": {"concurrency": EPISODES, "max_tokens": LOGPROBS, "context_length": 2048},
            "buffers": {"batch_size": 64, "max_staleness": 60},  # nothing is refused while it is measured
        }
    )


def _ledger(server: Server, settings: Config, url: str) -> Coordinator:
    c = Coordinator.create(server.client, settings.run.name, settings.ledger_settings)
    problems = ({"id": f"p{n}", "question": f"{n} + 1 = ?"} for n in range(PROMPTS))
    c.add_prompts({"id": p["id"], "payload": json.dumps(p).encode()} for p in problems)
    c.join("trainer", 0)
    c.publish("trainer", 0, "weights/0", DIGEST)
    c.register_engine("engine-0", 0, url)
    return c


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _start(module: str, *arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", module, *arguments], text=True, **options)


async def _serve(label: str) -> None:
    rng = random.Random(1)
    tokens = [[rng.randrange(5, 260) for _ in range(LOGPROBS - 1)] + [2] for _ in range(16)]
    replies = [answer(label, ids, [-rng.expovariate(0.7) for _ in ids]) for ids in tokens]

    async def script(request):
        await asyncio.sleep(REPLY_S)
        return rng.choice(replies)

    async with FakeSGLang(script).serving() as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
