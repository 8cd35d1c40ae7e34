"""The training loop: buffers in, versions out, in an order that survives a kill at any point.

    join(checkpoint c) ─▶ publish c, if the ledger lacks it
      └▶ for v = c, c+1, …:  wait for buffer v READY ─▶ consume ─▶ fetch ─▶ update v ─▶ metrics.jsonl
                             ─▶ every k: checkpoint v+1, durable, then told to the ledger
                             ─▶ every P: weights v+1, durable, then published

What the ledger is told lies on the disk already. A trainer that comes back at c gets batches c, c+1, … again, in the
same order, and computes the same; versions that are out already are not written again. Only rank 0 talks to the ledger.
"""

import json
import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import redis

from pipeline import keys
from pipeline.config import Config
from pipeline.coordinator import Batch, Coordinator
from pipeline.errors import HeadraceError, RolledBack, UnknownRun
from pipeline.progress import Progress, record_metrics
from pipeline.weights import MANIFEST, read_manifest
from trainer import checkpoint, model
from trainer.publish import write_weights
from trainer.ranks import Ranks
from trainer.update import TrainingFailed, Updater, make_optimizer

LOOK_S = 0.05  # between two looks at the ledger; its bell rings for every single entry
STATUS_S = 0.5  # between two looks at why it is not READY
STARVED = "starved"  # the ledger's memory is full of batches that only a checkpoint frees


class Trainer:
    """One incarnation. `run` returns when the run's last update is published, or soon after `stop()` answers True."""

    def __init__(self, config: Config, client: redis.Redis, ranks: Ranks, stop: Callable[[], bool] = lambda: False):
        self.config, self.ranks, self.stop = config, ranks, stop
        self.ledger = Coordinator(client, config.run.name)
        self.progress = Progress(client, config.run.name, "trainer", "trainer")
        self.incarnation = ranks.broadcast(uuid.uuid4().hex[:8])
        self.checkpoints = config.folder / "checkpoints"
        self.metrics_file = config.folder / "metrics.jsonl"
        self.waits: dict[str, float] = {}

    def run(self) -> None:
        self._start()
        while self.version < self.config.run.total_steps:
            try:
                if not self._advance():
                    break
            except RolledBack:  # Redis lost its last writes; what this trainer has is newer
                self._save(tell=False)
                self._join()
        self._save()
        self._on_first(self.progress.done)

    # -- start and resume ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        config, found = self.config, checkpoint.newest(self.checkpoints)
        # A checkpoint fills the weights in; version 0 may have been deleted by then.
        policy = model.load(config.model_path if found else config.folder / "weights" / "0")
        share_rows = model.shares_rows(policy, policy.device)
        policy = model.shard(policy, self.ranks, config.model.dtype)
        optimizer = make_optimizer(policy, config)
        self.updater = Updater(policy, optimizer, config, self.ranks, share_rows)
        if found:
            checkpoint.load(found, policy, optimizer)
            state = checkpoint.read_state(found)
            self.version, self.recent, self.probe = state["version"], state["recent"], state["probe"]
        else:
            self.version, self.recent = 0, []
            self.probe = list(read_manifest(config.folder / "weights" / "0").probe_tokens)
        self.saved = self.version
        self._on_first(self._wait_for_ledger)
        self._on_first(self._forget_metrics)
        self._join()
        self.clock = time.monotonic()

    def _wait_for_ledger(self) -> None:
        """The coordinator makes it, and may be starting still. Raises UnknownRun if it takes too long."""
        end = time.monotonic() + self.config.engines.start_timeout_s
        while True:
            try:
                self.ledger.fields()
                return
            except UnknownRun:
                if time.monotonic() > end or self.stop():
                    raise
                self.progress.waiting(f"run {self.config.run.name} to be created by the coordinator")
                time.sleep(STATUS_S)

    def _join(self) -> None:
        entries = [entry for batch in self.recent for entry in batch]
        joined = self._on_first(lambda: self.ledger.join(self.incarnation, self.version, entries))
        self.published = joined.version
        if self.version == self.published and not self._on_first(lambda: self.ledger.weights(self.version) is not None):
            self._publish()
        self._publish_if_due()

    def _forget_metrics(self) -> None:
        """Updates from `version` on will be recorded again."""
        kept, client, stream = [], self.ledger.client, keys.metrics(self.config.run.name)
        if self.metrics_file.exists():
            for line in self.metrics_file.read_text().splitlines(keepends=True):
                if line.endswith("\n") and json.loads(line)["version"] < self.version:  # a kill may have torn the last
                    kept.append(line)
            draft = self.metrics_file.with_suffix(".new")
            draft.write_text("".join(kept))
            draft.rename(self.metrics_file)
        for entry, fields in client.xrevrange(stream):
            if json.loads(fields[b"json"])["version"] < self.version:
                break
            client.xdel(stream, entry)

    # -- one update ---------------------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Wait for the next buffer and train on it. False: asked to stop."""
        batch = self._on_first(self._next_batch)
        if batch is None:
            return False
        if batch == STARVED:
            self._save()
            return True
        with self._timed("fetch"):
            trajectories = self.ledger.fetch(batch.refs)
        if self.ranks.first:
            self.progress.working(version=self.version, update=f"{self.version} on {len(trajectories)} trajectories")
        began = time.monotonic()
        metrics = self.updater.update(trajectories, self.version)
        self._record(metrics, time.monotonic() - began)
        self.version += 1
        keep = self.config.buffers.max_staleness + 2
        self.recent = [*self.recent, list(dict.fromkeys(ref.entry for ref in batch.refs))][-keep:]
        if self.version % self.config.trainer.checkpoint_every == 0:
            self._save()
        self._publish_if_due()
        return True

    def _next_batch(self) -> Batch | str | None:
        """The batch of update `version`; None: asked to stop; STARVED: a checkpoint is needed first."""
        began = looked = time.monotonic()
        seen = self.ledger.last_event()
        with self._timed("ready"):
            while not self.stop():
                if batch := self.ledger.consume(self.incarnation, self.version):
                    return batch
                now = time.monotonic()
                if now - looked >= STATUS_S:
                    looked = now
                    if self._must_checkpoint(now - began):
                        return STARVED
                time.sleep(LOOK_S)
                if events := self.ledger.wait(seen, STATUS_S):
                    seen = events[-1].id
        return None

    def _must_checkpoint(self, waited_s: float) -> bool:
        """Say why buffer `version` is not READY. True if the ledger's memory is full of batches that are trained on.

        Raises TrainingFailed if the run was stopped, or the wait took too long.
        """
        status, buffers = self.ledger.status(), self.config.buffers
        self.progress.waiting(status["waiting"] or f"buffer {self.version}", version=self.version)
        if status["stopped"]:
            raise TrainingFailed(f"the run was stopped: {status['stopped']}")
        if waited_s > self.config.trainer.wait_timeout_s:
            raise TrainingFailed(
                f"nothing to train on for trainer.wait_timeout_s = {self.config.trainer.wait_timeout_s:g} s: "
                f"{status['waiting']}. See the logs of workers and engines, then start the run again"
            )
        held = status["stored"] + (status["reserved"] + 1) * (buffers.group_launch or buffers.group_size)
        return self.saved < self.version and held * buffers.max_trajectory_bytes > buffers.byte_budget

    def _record(self, metrics: dict[str, Any], step_seconds: float) -> None:
        now = time.monotonic()
        elapsed, self.clock = now - self.clock, now
        waits, self.waits = self.waits, {}
        times = {
            "wait_seconds": {cause: round(seconds, 4) for cause, seconds in waits.items()},
            "idle_seconds": round(waits.get("ready", 0.0), 4),
            "step_seconds": round(step_seconds, 4),
            "tokens_per_second": round(metrics["tokens"] / elapsed, 1),
        }
        head = {"version": self.version, "step": self.version + 1, "time_ms": time.time_ns() // 1_000_000}
        line = head | metrics | times

        def write() -> None:
            record_metrics(self.ledger.client, self.config.run.name, line, self.metrics_file)
            self.progress.working(version=self.version + 1, tokens_s=times["tokens_per_second"])

        self._on_first(write)

    # -- what outlives this process -----------------------------------------------------------------------------------

    def _save(self, tell: bool = True) -> None:
        """A checkpoint of `version`, unless there is one; then the ledger may forget what no kept checkpoint needs."""
        if self.saved == self.version:
            return
        with self._timed("checkpoint"):
            state = {"version": self.version, "recent": self.recent, "probe": self.probe}
            checkpoint.save(
                self.checkpoints, self.version, self.updater.model, self.updater.optimizer, state, self.ranks
            )
        self.saved = self.version
        if tell:
            self._on_first(lambda: self.ledger.checkpoint(self.incarnation, self.version))

    def _publish_if_due(self) -> None:
        whole = self.version == self.published + self.config.publish.every
        last = self.version == self.config.run.total_steps and self.version > self.published
        if last:
            self._save()
        if whole or last:
            self._publish(last)

    def _publish(self, last: bool = False) -> None:
        """Write the weights of `version`, then publish them."""
        config = self.config
        name = "0" if self.version == 0 else f"{self.version}-{self.incarnation}"
        folder = config.folder / "weights" / name
        with self._timed("publish"):
            if not (folder / MANIFEST).is_file():
                write_weights(
                    self.updater.model,
                    folder,
                    self.version,
                    config.model_path,
                    config.model.dtype,
                    self.probe,
                    self.ranks.first,
                )

            def tell() -> None:
                digest = read_manifest(folder).digest[:16]
                self.ledger.publish(self.incarnation, self.version, f"weights/{name}", digest, last)

            self._on_first(tell)
        self.published = self.version

    # -- ranks and times ----------------------------------------------------------------------------------------------

    def _on_first(self, call: Callable[[], Any]) -> Any:
        """What `call` returns, or raises, on rank 0: on every rank."""
        answer = error = None
        if self.ranks.first:
            try:
                answer = call()
            except (HeadraceError, redis.RedisError, OSError) as raised:
                error = raised
        answer, error = self.ranks.broadcast((answer, error))
        if error is not None:
            raise error
        return answer

    @contextmanager
    def _timed(self, cause: str):
        began = time.monotonic()
        try:
            yield
        finally:
            self.waits[cause] = self.waits.get(cause, 0.0) + time.monotonic() - began
