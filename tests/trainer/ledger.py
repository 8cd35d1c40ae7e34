"""A run without engines and workers: a real ledger, filled with synthetic trajectories."""

import contextlib
import threading
import uuid
from pathlib import Path

import numpy as np
import redis

from pipeline.config import Config
from pipeline.config_file import load
from pipeline.coordinator import Coordinator, Placed, Reservation
from pipeline.errors import RolledBack, UnknownRun
from pipeline.trajectory import Trajectory
from trainer.cold_start import prepare

RUN = """
[run]
name = "{name}"
folder = "{folder}"
total_steps = {total_steps}
seed = 3

[model.tiny]
layers = 2
hidden = 32
heads = 2
vocabulary = 320

[data]
size = 16
tasks.chain_sum = {{ min_terms = 2, max_terms = 2 }}

[rollout]
max_tokens = 32
context_length = 128

[buffers]
max_staleness = {max_staleness}
batch_size = {batch_size}
max_trajectory_bytes = 65536
byte_budget = {byte_budget}

[advantage]
evidence = "{evidence}"

[loss]
{loss}

[optimizer]
lr = {lr}

[trainer]
token_budget = 128
checkpoint_every = {checkpoint_every}
ranks = {ranks}
minibatches = {minibatches}
wait_timeout_s = 60
archive = {archive}
checkpoints_kept = {checkpoints_kept}

[publish]
every = {every}
"""
DEFAULTS = {
    "total_steps": 4,
    "max_staleness": 0,
    "batch_size": 4,
    "checkpoint_every": 2,
    "checkpoints_kept": 2,
    "ranks": 1,
    "minibatches": 1,
    "every": 1,
    "byte_budget": 1 << 30,
    "evidence": "event",
    "loss": "",
    "lr": "1e-3",
    "archive": "false",
}


def make_run(folder: Path, name: str, **settings) -> Config:
    """A run's folder with run.toml and version 0, as the launcher leaves it to the trainer."""
    (folder / name).mkdir(parents=True)
    path = folder / name / "run.toml"
    path.write_text(RUN.format(folder=folder, name=name, **(DEFAULTS | settings)))
    config = load(path)
    prepare(config)
    return config


def trajectory(seed: int, vocabulary: int = 320, longest: int = 60, **fields) -> Trajectory:
    """Prompt, action, tool output, action; random tokens, log-probs near those of a flat policy."""
    draw = np.random.default_rng(seed)
    parts = [int(n) for n in draw.integers(3, max(4, longest // 4), 4)]
    mask = np.repeat([0, 1, 0, 1], parts).astype(np.uint8)
    starts = np.cumsum([0, *parts])
    version = fields.get("version", 0)
    values = {
        "prompt_id": f"p{seed}",
        "entry": f"e{seed}",
        "version": version,
        "event": version,
        "value": float(draw.uniform(0.2, 0.8)),
        "outcome": float(draw.integers(0, 2)),
        "tokens": draw.integers(0, vocabulary, len(mask)).astype(np.int32),
        "loss_mask": mask,
        "rollout_logprobs": (mask * (-np.log(vocabulary) + draw.normal(0, 0.3, len(mask)))).astype(np.float32),
        "segments": [(int(starts[i]), parts[i], "engine", version) for i in (1, 3)],
    }
    return Trajectory(**(values | fields))


class Producer(threading.Thread):
    """Workers and engines in one: finishes entries as fast as the ledger admits them, each on the newest version.

    With max_staleness = 0 the trajectories of a run are always the same, also after Redis lost some: they depend on
    their place in it alone. A batch is in the order of its prompts, and which are drawn depends on what was lost: so
    there is one, unless `prompts` says otherwise.
    """

    def __init__(self, client: redis.Redis, config: Config, prompts: int = 1, **fields):
        super().__init__(daemon=True)
        self.client, self.config, self.prompts, self.fields = client, config, prompts, fields
        self.create()
        self.ended, self.error = threading.Event(), None
        self.entry = uuid.uuid4().hex  # asked for again when Redis comes back
        self.quiet = threading.Lock()  # held by a test that must not be disturbed

    def create(self, prompts=None):
        """What the coordinator process does, at its start and when Redis was emptied."""
        config = self.config
        self.ledger = Coordinator.create(self.client, config.run.name, config.ledger_settings, seed=1)
        self.ledger.add_prompts(prompts or [{"id": f"p{i}"} for i in range(self.prompts)])

    def run(self):
        try:
            while not self.ended.wait(0.02):
                with self.quiet, contextlib.suppress(RolledBack, UnknownRun, redis.ConnectionError):
                    self._work(int(self.ledger.fields()["version"]))
        except Exception as error:
            self.error = error

    def _work(self, version: int):
        if self.ledger.weights(version) is None:
            return
        self.ledger.register_engine("engine", version)
        while isinstance(r := self.ledger.reserve("worker-0-x", "engine", self.entry), Reservation):
            t = trajectory(
                self._place(r.version),
                prompt_id=r.prompt,
                entry=r.entry,
                version=r.version,
                event=r.event,
                **self.fields,
            )
            assert isinstance(self.ledger.occupy(r.entry, [t]), Placed)
            self.entry = uuid.uuid4().hex
        self.entry = uuid.uuid4().hex

    def _place(self, version: int) -> int:
        """How many trajectories were placed before, as this Redis knows it."""
        filled = sum(buffer.occupied for buffer in self.ledger.buffers() if buffer.id >= version)
        return version * self.config.buffers.batch_size + filled

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()
        assert self.error is None, self.error
