"""The settings of one run, checked before anything starts. config_file.py reads them from its TOML file.

    run.toml ──load()──▶ Config ──.digest──▶ stored in Redis; a process whose digest differs refuses to join
                            └──.folder────▶ everything the run writes: {run.folder}/{run.name}/

The digest leaves out what may differ between the hosts of one run: addresses, paths, ports, counts of processes.
And what decides nothing that is trained, such as how often a checkpoint is made: it may be changed when a run goes on.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import model_validator

from pipeline.config_rules import impossible
from pipeline.config_sections import (
    Buffers,
    Data,
    Engines,
    Environment,
    Eval,
    Log,
    Metrics,
    Model,
    Redis,
    Rollout,
    Run,
    Section,
)
from pipeline.config_training import Advantage, ColdStart, Loss, Optimizer, Publish, Trainer
from pipeline.ignored_settings import ignored


class Config(Section):
    """A whole run. Sections are read by the room that needs them."""

    run: Run
    model: Model
    data: Data
    environment: Environment = Environment()
    rollout: Rollout = Rollout()
    engines: Engines = Engines()
    buffers: Buffers = Buffers()
    advantage: Advantage = Advantage()
    loss: Loss = Loss()
    optimizer: Optimizer = Optimizer()
    trainer: Trainer = Trainer()
    cold_start: ColdStart | None = None
    publish: Publish = Publish()
    eval: Eval = Eval()
    redis: Redis = Redis()
    metrics: Metrics = Metrics()
    log: Log = Log()

    @property
    def folder(self) -> Path:
        return self.run.folder / self.run.name

    @property
    def model_path(self) -> Path:
        """Folder of the model the run starts from; made by the cold start if it is not model.path."""
        return self.model.path or self.folder / "model"

    @property
    def digest(self) -> str:
        """Sixteen hex digits over every setting that all processes of the run must share. What is as by default is left
        out: so a setting that a newer headrace adds makes no other run of one that goes on."""
        shared = self.model_dump(mode="json", exclude=NOT_SHARED, exclude_defaults=True)
        given = {name for name, field in type(self).model_fields.items() if not isinstance(field.default, Section)}
        shared = {name: section for name, section in shared.items() if section or name in given}
        return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def ledger_settings(self) -> dict[str, Any]:
        """What `Coordinator.create` takes, with the digest that it stores beside."""
        buffers = self.buffers.model_dump()
        buffers["buffer_capacity"] = self.buffers.buffer_capacity or self.buffers.batch_size
        buffers["group_launch"] = self.buffers.group_launch or self.buffers.group_size
        return buffers | {
            "publish_every": self.publish.every,
            "rho": self.advantage.rho,
            "sampler": self.advantage.sampler,
            "evidence": self.advantage.evidence,
            "digest": self.digest,
        }

    def differences(self, other: "Config") -> list[str]:
        """Shared settings in which `other` differs, as `section.key: ours → theirs`."""
        ours, theirs = (dict(flat(c.model_dump(mode="json", exclude=NOT_SHARED))) for c in (self, other))
        keys = sorted(ours.keys() | theirs.keys())
        return [f"{k}: {ours.get(k)} → {theirs.get(k)}" for k in keys if ours.get(k) != theirs.get(k)]

    @model_validator(mode="after")
    def _possible(self) -> "Config":
        if problems := [*impossible(self), *ignored(self)]:
            raise ValueError("\n".join(problems))
        return self


NOT_SHARED = {
    "run": {"folder", "total_steps"},
    "model": {"path", "gguf"},
    "data": {"path"},
    "eval": {"data": {"path"}},
    # all about starting servers; what they compute, label and probe say
    "engines": set(Engines.model_fields) - {"probe_tolerance"},
    "rollout": {"workers", "concurrency"},
    "publish": {"transport", "bucket_mb", "delta"},
    "trainer": {
        "ranks",
        "gpus",
        "share_gpus",
        "nodes",
        "rendezvous",
        "max_restarts",
        "replicas",
        "offload",
        "gather_every",
        "token_budget",
        "activation_checkpointing",
        "threads",
        "wait_timeout_s",
        "archive",
        "checkpoint_every",
        "checkpoints_kept",
        "max_skipped",
        "mismatch_alarm",
    },
    "advantage": {"values"},
    "cold_start": {"teacher"},
    "redis": True,
    "metrics": True,
    "log": True,
}


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
