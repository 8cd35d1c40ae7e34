"""How long the trainer stands still although the next batch is always there, and for what.

    python -m tests.bench.idle RUN.toml REDIS    a producer: finished trajectories, as many as the ledger admits
    python -m trainer RUN.toml                   the real trainer: updates, publications, checkpoints

A publication costs what its bytes take the disk, an update what its tokens take the arithmetic: 8,000 tokens in float32
are to this machine (1 GB/s, 40 GFLOP/s) what 4 million in bfloat16 would be to an H200 at 40 % with ten times the disk.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np

from pipeline import jsonl
from pipeline.config import Config
from pipeline.config_file import load, to_toml
from pipeline.coordinator import Coordinator, Reservation
from pipeline.errors import LedgerError
from pipeline.redis_client import connect
from pipeline.trajectory import Trajectory
from tests.bench.result import Result
from tests.bench.server import Server

UPDATES, WARM = 10, 2  # the first ones fill caches
BATCH, TOKENS = 32, 256
TARGET = 0.03
WAIT_S = 0.05  # of the producer, while the window is full
LONGEST_S = 1200.0


def measure(server: Server) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        config = _settings(Path(folder))
        config.folder.mkdir()
        run_toml = config.folder / "run.toml"
        run_toml.write_text(to_toml(config))
        _run("trainer.cold_start", run_toml)
        producer = subprocess.Popen([sys.executable, "-m", "tests.bench.idle", str(run_toml), server.url])
        try:
            _run("trainer", run_toml, "--redis", server.url)
        finally:
            producer.send_signal(signal.SIGTERM)
            producer.wait(30)
        return [_result(jsonl.read(config.folder / "metrics.jsonl")[WARM:])]


def _result(lines: list[dict]) -> Result:
    """Whatever is no update is idle: the named causes, and the rest, which is telling Redis and the disk about it."""
    seconds = sum(line["seconds"] for line in lines)
    spent = {cause: sum(line["wait_seconds"][cause] for line in lines) for cause in lines[0]["wait_seconds"]}
    spent["the rest"] = seconds - sum(line["step_seconds"] for line in lines) - sum(spent.values())
    idle = sum(spent.values()) / seconds
    causes = ", ".join(f"{cause} {s / seconds:.2%}" for cause, s in spent.items())
    size = f"{seconds / len(lines):.1f} s and {sum(line['tokens'] for line in lines) // len(lines):,} action tokens"
    return Result(
        f"Trainer idle, η = 2, a producer always ahead; an update is {size}; each is published, every 4th a checkpoint",
        f"{idle:.2%} of its time: {causes}",
        f"< {TARGET:.0%}",
        idle < TARGET,
        (idle,),
    )


def _settings(folder: Path) -> Config:
    return Config.model_validate(
        {
            "run": {"name": f"idle-{uuid.uuid4().hex[:8]}", "folder": folder, "total_steps": UPDATES},
            "model": {"tiny": {"layers": 4, "hidden": 256, "heads": 4, "vocabulary": 4096}},
            "data": {"tasks": {"chain_sum": {}}, "size": 8 * BATCH},
            "rollout": {"context_length": 1024},
            "buffers": {"batch_size": BATCH, "max_staleness": 2},
            "trainer": {"token_budget": 4096, "checkpoint_every": 4, "wait_timeout_s": LONGEST_S},
        }
    )


def _run(module: str, *arguments: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)], stderr=subprocess.PIPE, text=True, timeout=LONGEST_S
    )
    if done.returncode:
        raise RuntimeError(f"{module} exited with {done.returncode}: {done.stderr[-500:]}")


# -- the producer's process


def produce(config: Config, redis_url: str) -> None:
    """Coordinator, engine and worker in one: the newest version is served at once, and nothing takes any time."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    draw = np.random.default_rng(1)
    with connect(redis_url) as client:
        c = Coordinator.create(client, config.run.name, config.ledger_settings)
        c.add_prompts({"id": f"p{i}"} for i in range(config.data.size))
        while not stop:
            with contextlib.suppress(LedgerError):
                version = int(c.fields()["version"])
                if c.weights(version) is not None:
                    c.register_engine("engine", version)
                    while isinstance(reserved := c.reserve("worker-0-a", "engine"), Reservation):
                        c.occupy(reserved.entry, [_trajectory(reserved, draw)])
            time.sleep(WAIT_S)


def _trajectory(reserved: Reservation, draw: np.random.Generator) -> Trajectory:
    length = int(draw.integers(TOKENS // 2, 3 * TOKENS // 2))
    mask = (np.arange(length) >= length // 4).astype(np.uint8)
    start, vocabulary = length // 4, 4096
    return Trajectory(
        prompt_id=reserved.prompt,
        entry=reserved.entry,
        version=reserved.version,
        event=reserved.event,
        value=reserved.value,
        outcome=float(draw.integers(0, 2)),
        tokens=draw.integers(0, vocabulary, length).astype(np.int32),
        loss_mask=mask,
        rollout_logprobs=(mask * -np.log(vocabulary)).astype(np.float32),
        segments=[(start, length - start, "engine", reserved.version)],
    )


if __name__ == "__main__":
    produce(load(sys.argv[1]), sys.argv[2])
