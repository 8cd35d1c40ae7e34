"""The ledger's rules, written from protocol.md alone: what each transition must answer, and what is true after it.

Methods are the transitions, at the time `now` (ms). They answer as pipeline/coordinator.py does, an exception as its
code.
"""

import math

from pipeline.coordinator import Credited, Published, Replayed
from pipeline.ledger_types import Joined
from tests.pipeline.ledger_machine.dispatch import Dispatch


class Model(Dispatch):
    """One run."""

    # -- the trainer --------------------------------------------------------------------------------------------------

    def join(self, trainer: str, checkpoint: int, recent: list[str]):
        """Joined, or a code."""
        if trainer != self.trainer and trainer in self.trainers:
            return "FENCED"
        if checkpoint < self.oldest:
            return "MISSING"
        if self.rules.evidence == "receipt":
            remembered = checkpoint - self.rules.max_staleness - 2 if self.trainer else checkpoint
            self.credited = max(self.credited, remembered)
        behind = checkpoint > self.head
        released = self.running() if behind else []
        for entry in released:
            self.drop(entry, "cancelled")
        kept = checkpoint if behind else self.checkpointed if checkpoint > self.checkpointed else self.oldest
        self.forget(kept)
        if behind:
            self.event += math.ceil((checkpoint - self.version) / self.rules.publish_every)
            self.head = self.version = checkpoint
        self.oldest, self.checkpointed = kept, checkpoint
        self.trainer = trainer
        self.trainers.add(trainer)
        dropped = [self.entries[n] for n in recent if n in self.entries]
        dropped = [e for e in dropped if e.state in ("RESERVED", "OCCUPIED")]
        for entry in dropped:
            if entry.state == "RESERVED":
                self.drop(entry, "cancelled")
            entry.state = "RELEASED"
        self.forget_workers()
        self.settle()
        return Joined(self.version, self.head, self.event, len(dropped), len(released), self.credited)

    def forget(self, below: int) -> None:
        """Buffers below go, with their entries."""
        for entry in [e for b in range(self.oldest, below) for e in self.members(b)]:
            del self.entries[entry.name]
        self.forget_workers()

    def forget_workers(self) -> None:
        """What is known of a dead worker goes with its last payload; that it was to drain, too."""
        kept = {e.worker for e in self.entries.values() if e.state in ("OCCUPIED", "CONSUMED")}
        self.drained &= self.leases.keys() | kept

    def consume(self, trainer: str, version: int):
        """The batch's entries in order, None, or a code."""
        if trainer != self.trainer:
            return "FENCED"
        if version < self.oldest:
            return "MISSING"
        if version > self.head:
            return "NOT_HEAD"
        if version == self.head:
            if self.head >= self.version + self.rules.publish_every:
                return "PUBLISH_FIRST"
            if not self.ready(version):
                self.awaited = self.head
                return None
            for entry in self.members(version):
                entry.state = "CONSUMED"
            self.head += 1
            self.settle()
        return [e.name for e in self.members(version)]

    def credit(self, trainer: str, version: int, credits: list[tuple[str, float, float]]):
        if trainer != self.trainer:
            return "FENCED"
        if self.rules.evidence != "receipt":
            return "NO_EVIDENCE"
        if version < self.credited:
            return Replayed()
        if version >= self.head:
            return "AHEAD"
        if version > self.credited:
            return "UNCREDITED"
        if any(prompt not in self.prompts for prompt, _, _ in credits):
            return "PROMPT"
        self.credited += 1
        self.credits += credits
        return Credited()

    def publish(self, trainer: str, version: int):
        if trainer != self.trainer:
            return "FENCED"
        if version > self.version:
            if version != self.head or version != self.version + self.rules.publish_every:
                return "EARLY"
            if self.rules.evidence == "receipt" and self.credited < version:
                return "UNCREDITED"
            self.version, self.event = version, self.event + 1
        elif version < self.version or version in self.published:
            return Replayed()
        self.published[version] = self.event
        self.settle()
        return Published(self.event)

    def checkpoint(self, trainer: str, version: int):
        """The oldest batch that is kept, or a code."""
        if trainer != self.trainer:
            return "FENCED"
        if version > self.head:
            return "AHEAD"
        if version > self.checkpointed:
            self.forget(self.checkpointed)
            self.oldest, self.checkpointed = max(self.oldest, self.checkpointed), version
        missing = self.rules.batch_size - len(self.members(self.head))
        too_few = missing > len(self.running())
        needed = (self.stored() + missing * self.rules.group_launch) * self.rules.max_trajectory_bytes
        if too_few and 0 < self.rules.byte_budget < needed:
            self.forget(self.checkpointed)
            self.oldest = max(self.oldest, self.checkpointed)
        return self.oldest

    # -- the coordinator process --------------------------------------------------------------------------------------

    def load(self, engine: str, version: int) -> None:
        """What the ledger did not see published is counted from what it did."""
        apart = math.ceil(abs(self.version - version) / self.rules.publish_every)
        counted = self.event - apart if version < self.version else self.event + apart
        self.engines[engine] = version, self.published.get(version, counted)

    def pause(self) -> None:
        self.paused = True

    def stop(self) -> None:
        self.stopped = True

    def resume(self) -> None:
        self.paused = self.stopped = False
        self.failures = self.filtered = 0
        for prompt in self.prompts.values():
            if prompt.state == "quarantined":
                prompt.state, prompt.first, prompt.attempts, prompt.lost = "idle", True, 0, 0

    def drain(self, worker: str, now: int) -> None:
        self.leases.setdefault(worker, now + self._lease_ms())
        self.drained.add(worker)
