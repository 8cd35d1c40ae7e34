"""A run is trained, killed, and looked at afterwards. A kill is an exception that nothing handles."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from pipeline import ports, weights
from tests.trainer import stuck_disk
from trainer.loop import Trainer
from trainer.ranks import joined

TIMES = {
    "time_ms",
    "seconds",
    "wait_seconds",
    "idle_seconds",
    "step_seconds",
    "checkpoint_seconds",
    "tokens_per_second",
}
OF_ONE_RUN = TIMES | {"batch"}  # which names entries, whose ids no other run has


class Killed(BaseException):
    pass


def train(config, client, stop=lambda: False, kind=Trainer):
    with joined(config.trainer) as ranks:
        trainer = kind(config, client, ranks, stop)
        trainer.run()
        return trainer


def recorded(config):
    return [json.loads(line) for line in (config.folder / "metrics.jsonl").read_text().splitlines()]


def comparable(lines):
    return [{k: v for k, v in line.items() if k not in OF_ONE_RUN} for line in lines]


def last_weights(config):
    (folder,) = (config.folder / "weights").glob(f"{config.run.total_steps}-*")
    weights.verify_files(folder)
    return (folder / "model.safetensors").read_bytes()


def wait_until(condition, timeout_s=60):
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


@contextlib.contextmanager
def started(config, redis_url, *how):
    """The trainer's ranks as processes, killed at the end. how: of stuck_disk.py; none: a good disk."""
    program = [stuck_disk.__file__, *how] if how else ["-m", "trainer"]
    command = [sys.executable, *program, str(config.folder / "run.toml"), "--redis", redis_url]
    size = config.trainer.ranks
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(stuck_disk.__file__).parents[2])}
    environment |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports.free()[0])}
    ranks = [
        subprocess.Popen(
            command,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def ended(ranks):
    """What each rank wrote, and its exit code."""
    return [(process.communicate(timeout=100)[1], process.returncode) for process in ranks]
