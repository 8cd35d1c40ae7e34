"""A run is trained, killed, and looked at afterwards. A kill is an exception that nothing handles."""

import json
import time

from pipeline import weights
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
