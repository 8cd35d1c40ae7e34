"""A run is trained, killed, and looked at afterwards. A kill is an exception that nothing handles."""

import functools
import hashlib
import json

import pytest

from pipeline import weights
from pipeline.redis_client import RedisFailed, patient
from trainer.loop import Trainer
from trainer.ranks import joined

TIMES = {
    "time_ms",
    "seconds",
    "wait_seconds",
    "idle_seconds",
    "step_seconds",
    "publish_seconds",
    "publish_bytes",
    "checkpoint_seconds",
    "tokens_per_second",
    "peak_memory_gib",
}
OF_ONE_RUN = TIMES | {"batch"}  # which names entries, whose ids no other run has


class Killed(BaseException):
    pass


def train(config, client, stop=lambda: False, kind=Trainer):
    with joined(config.trainer) as ranks:
        trainer = kind(config, client, ranks, stop)
        trainer.run()
        return trainer


def trainer_that_loses(producer, since, at):
    """A kind of Trainer whose Redis, when update `at` is waited for, is once as it was before update `since`. `lost`
    tells when that was."""
    client, ours = producer.client, f"hr:{{{producer.config.run.name}}}*"

    class Loses(Trainer):
        snapshot, lost = None, []

        def _next_batch(self):
            with producer.quiet:
                keys = [key for key in client.scan_iter(ours) if b":process" not in key]
                if self.version == since and not self.snapshot:
                    self.snapshot = {key: client.dump(key) for key in keys}
                if self.version == at and not self.lost:
                    self.lost.append(self.version)
                    client.delete(*keys)
                    for key, value in self.snapshot.items():
                        client.restore(key, 0, value)
            return super()._next_batch()

    return Loses


def give_up_on_redis(config, client, kind, module):
    """Train until the trainer, whose `module` waits for Redis, has waited long enough."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RedisFailed):
        patch.setattr(module, "patient", functools.partial(patient, away_s=0.2))
        train(config, client, kind=kind)


def recorded(config):
    return [json.loads(line) for line in (config.folder / "metrics.jsonl").read_text().splitlines()]


def comparable(lines):
    return [{k: v for k, v in line.items() if k not in OF_ONE_RUN} for line in lines]


def last_weights(config):
    """Its sha256: two whole files that differ would keep the explanation of a failed assertion busy for minutes."""
    return hashlib.sha256(last_file(config).read_bytes()).hexdigest()


def last_file(config):
    (folder,) = (config.folder / "weights").glob(f"{config.run.total_steps}-*")
    weights.verify_files(folder)
    return folder / "model.safetensors"
