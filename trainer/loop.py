"""The training loop: buffers in, versions out, in an order that survives a kill at any point.

    join(checkpoint c) ─▶ publish c, if the ledger lacks it
      └▶ for v = c, c+1, …:  wait for buffer v READY ─▶ consume ─▶ take ─▶ update v ─▶ trained/v.bin ─▶ metrics.jsonl
                             ─▶ credit v, with evidence "receipt": trainer/receipts.py
                             ─▶ every P: weights v+1, durable, then published
                             ─▶ every k: checkpoint v+1, staged; told to the ledger after a later update, once durable

Batch v+1 is looked for, fetched and packed meanwhile: trainer/prefetch.py; and checkpoints are written meanwhile:
trainer/checkpoint.py. Nothing ends, and no ledger is joined again, before what is being written is durable.

What the ledger is told lies on the disk already. A trainer that comes back at c gets batches c, c+1, … again, in the
same order, and computes the same; versions that are out already are not written again.

Only rank 0 talks to the ledger and looks at the disk; what it finds decides for all ranks, which but read the batch
themselves. A Redis that is away is waited for; one that lost writes, or everything, gets a checkpoint first and is
joined again.
"""

import time
import uuid
from collections.abc import Callable
from typing import Any

import redis

from pipeline import checkpoint_folder, trajectory_file
from pipeline.config import Config
from pipeline.coordinator import Batch, Coordinator
from pipeline.errors import RolledBack, UnknownRun
from pipeline.progress import Progress
from pipeline.redis_client import RedisFailed, patient
from pipeline.weights import MANIFEST, read_manifest
from trainer import checkpoint
from trainer.batch import Prepared, TrainingFailed
from trainer.delta import Delta
from trainer.prefetch import Prefetch
from trainer.publish import write_weights
from trainer.ranks import Ranks
from trainer.record import Record
from trainer.resume import resume
from trainer.throughput import peak_memory_gib, peak_of

LOOK_S = 0.05  # between two looks at the ledger; its bell rings for every single entry
STATUS_S = 0.5  # between two looks at why it is not READY
QUIET_S = 3600.0  # an update or a checkpoint of a large model says nothing for so long
STARVED = "starved"  # the ledger's memory is full of batches that only a checkpoint frees


class Trainer:
    """One incarnation. `run` returns when the run's last update is published, or soon after `stop()` answers True."""

    def __init__(self, config: Config, client: redis.Redis, ranks: Ranks, stop: Callable[[], bool] = lambda: False):
        self.config, self.ranks, self.stop = config, ranks, stop
        self.ledger = Coordinator(client, config.run.name)
        self.progress = Progress(client, config.run.name, "trainer", "trainer")
        self.incarnation = ranks.broadcast(uuid.uuid4().hex[:8])
        self.writer = checkpoint.Writer(config.folder / "checkpoints", ranks, config.trainer.checkpoints_kept)
        peak = peak_of(ranks, config.model.dtype)
        self.record = Record(client, config.run.name, config.folder / "metrics.jsonl", peak)
        self.delta = Delta() if config.publish.delta else None

    def run(self) -> None:
        self._start()
        with self.writer, Prefetch(self.ledger, self.updater.prepare) as self.prefetch:
            goes_on = self._join()
            while goes_on:
                try:
                    goes_on = self.version < self.config.run.total_steps and self._advance()
                    if not goes_on:
                        self._save(wait=True)
                except (RolledBack, UnknownRun):  # Redis lost writes, or all of them; what this trainer has is newer
                    self._save(wait=True, tell=False)
                    goes_on = self._join()
                except RedisFailed:  # away for too long, or while this trainer was asked to stop
                    self._save(wait=True, tell=False)
                    raise
        self._on_first(self.progress.done)

    # -- start and resume ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.updater, self.receipts, state = resume(self.config, self.ranks)
        self.version, self.recent, self.probe = state["version"], state["recent"], state["probe"]
        self.begun = self.saved = self.version
        self.event, self.prompts = state.get("event", 0), []  # as rank 0 saw them last
        self._on_first(self._read_prompts)
        self._on_first(lambda: self.record.forget(self.version))

    def _join(self) -> bool:
        """Become the run's trainer, once the coordinator has made the run; False: asked to stop before."""
        timeout_s, say = self.config.engines.start_timeout_s, self.progress.waiting
        if not self._on_first(lambda: self.ledger.wait_for_run(self.config.digest, timeout_s, self.stop, say)):
            return False
        entries = [entry for batch in self.recent for entry in batch]
        joined = self._on_first(lambda: self.ledger.join(self.incarnation, self.version, entries))
        self.published, self.credited = joined.version, joined.credited
        self._credit()
        if self.version == self.published and not self._on_first(lambda: self.ledger.weights(self.version) is not None):
            self._publish()
        self._publish_if_due()
        return True

    # -- one update ---------------------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Wait for the next buffer and train on it. False: asked to stop."""
        self._settle()
        batch = self._on_first(self._next_batch)
        if batch is None:
            return False
        if batch == STARVED:
            self._save(wait=True)
            return True
        with self.record.timed("fetch"):
            prepared = self.ranks.on_each(lambda: patient(lambda: self.prefetch.take(batch.refs), stop=self.stop))
        self.prefetch.look_for(self.version + 1)
        self._busy(update=f"{self.version} on {len(batch.refs)} trajectories")
        with self.record.timed("update"):
            metrics = (self.receipts or self.updater).update(prepared, self.version)
        metrics["peak_memory_gib"] = round(max(self.ranks.gather(peak_memory_gib(self.ranks.device))), 3)
        done, entries = self.version, list(dict.fromkeys(ref.entry for ref in batch.refs))
        self.version, self.recent = done + 1, [*self.recent, entries][-self.config.buffers.max_staleness - 2 :]
        self.ranks.on_first(lambda: self._archive(done, prepared))
        line = self.ranks.on_first(lambda: self.record.write(done, entries, metrics))
        self._on_first(lambda: self.progress.working(version=self.version, tokens_s=line["tokens_per_second"]))
        self._credit()
        self._publish_if_due()
        if self.version % self.config.trainer.checkpoint_every == 0:
            self._save()
        return True

    def _next_batch(self) -> Batch | str | None:
        """The batch of update `version`; None: asked to stop; STARVED: a checkpoint is needed first."""
        began = looked = time.monotonic()
        seen = self.ledger.last_event()
        with self.record.timed("ready"):
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
        status = self.ledger.status()
        self.progress.waiting(status["waiting"] or f"buffer {self.version}", version=self.version)
        if status["stopped"]:
            raise TrainingFailed(f"the run was stopped: {status['stopped']}")
        if waited_s > self.config.trainer.wait_timeout_s:
            raise TrainingFailed(
                f"nothing to train on for trainer.wait_timeout_s = {self.config.trainer.wait_timeout_s:g} s: "
                f"{status['waiting']}. See the logs of workers and engines, then start the run again"
            )
        if status["memory_full"] and self.saved == self.version:
            self.ledger.checkpoint(self.incarnation, self.version)  # again: a ledger that is full by now keeps less
        return status["memory_full"] and self.saved < self.version

    # -- what outlives this process -----------------------------------------------------------------------------------

    def _archive(self, version: int, batch: Prepared) -> None:
        if self.config.trainer.archive:
            folder = self.config.folder / "trained"
            folder.mkdir(exist_ok=True)
            trajectory_file.write(folder / f"{version}.bin", batch.trajectories)

    def _credit(self) -> None:
        """What was trained becomes evidence, in the order of its updates."""

        def tell() -> None:
            for version in range(self.credited, self.version):
                self.ledger.credit(self.incarnation, version, self.receipts.of(version))

        if self.receipts:
            self._on_first(tell)
            self.credited = max(self.credited, self.version)

    def _read_prompts(self) -> None:
        """Their evidence as of the checkpoint that this trainer begins with."""
        self.prompts = list(checkpoint_folder.read_prompts(self.config.folder / "checkpoints").values())

    def _look_at_prompts(self) -> None:
        """Their evidence at this moment, when all that was trained on is credited and nothing else is."""
        self.prompts, self.event = self.ledger.evidence(), int(self.ledger.fields()["event"])

    def _save(self, wait: bool = False, tell: bool = True) -> None:
        """Begin a checkpoint of `version`, unless there is one, once the one before is durable. wait: until this one is
        too. tell: the ledger."""
        if self.begun < self.version:
            self._settle(wait=True, tell=tell)
            with self.record.timed("checkpoint"):
                if tell:  # else Redis is away, or lost what it knew of them
                    self._on_first(self._look_at_prompts)
                state = {"version": self.version, "recent": self.recent, "probe": self.probe, "event": self.event}
                state["skipped_in_a_row"] = self.updater.stepper.skipped_in_a_row
                credits, previous = [], None
                if self.receipts:
                    credits, previous = self.receipts.credits, self.receipts.previous
                self.writer.begin(self.updater, state | {"credits": credits}, self.prompts, previous)
            self.begun = self.version
        if wait:
            self._settle(wait=True, tell=tell)

    def _settle(self, wait: bool = False, tell: bool = True) -> None:
        """If a checkpoint has become durable, the ledger may forget what no kept checkpoint needs."""
        if wait and tell and self.saved < self.begun:
            self._busy(update=f"checkpoint {self.begun}")
        with self.record.timed("checkpoint"):
            written = self.writer.settle(wait)
        if written:
            self.saved = written.version
            self.record.checkpoint_seconds += written.seconds
            if tell:
                self._on_first(lambda: self.ledger.checkpoint(self.incarnation, self.saved))

    def _publish_if_due(self) -> None:
        whole = self.version == self.published + self.config.publish.every
        last = self.version == self.config.run.total_steps and self.version > self.published
        if last:
            self._save(wait=True)
        if whole or last:
            self._publish(last)

    def _publish(self, last: bool = False) -> None:
        """Write the weights of `version`, then publish them."""
        config = self.config
        name = "0" if self.version == 0 else f"{self.version}-{self.incarnation}"
        folder = config.folder / "weights" / name
        with self.record.timed("publish"):
            if not self._on_first((folder / MANIFEST).is_file):
                self._busy(update=f"weights {self.version}")
                self.record.publish_bytes += write_weights(
                    self.updater.model,
                    folder,
                    self.version,
                    config.model_path,
                    config.model.dtype,
                    self.probe,
                    self.ranks,
                    config.publish.bucket_mb,
                    self.delta,
                ).bytes

            def tell() -> None:
                digest = read_manifest(folder).label(config.run.name).digest
                self.ledger.publish(self.incarnation, self.version, f"weights/{name}", digest, last)

            self._on_first(tell)
        self.published = self.version

    # -- rank 0 --------------------------------------------------------------------------------------------------------

    def _on_first(self, call: Callable[[], Any]) -> Any:
        """`call`, which may be repeated, on rank 0; again while Redis is away. Its answer or error is every rank's."""
        return self.ranks.on_first(lambda: patient(call, stop=self.stop))

    def _busy(self, **numbers: str) -> None:
        self._on_first(lambda: self.progress.busy_for(QUIET_S, version=self.version, **numbers))
