"""The archive of a run's events, replayed as a ledger of its own: what the scripts did is done again, by other code.

    events.jsonl ─▶ whole_history ─▶ Replay.apply(event), one after the other ─▶ Findings
                    without what Redis lost

audit_entries.py follows the entries; here is the run: version, head, what is credited and kept, and what holds after
every event.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pipeline.audit_entries import Entries, Rules
from pipeline.errors import HeadraceError

QUIET_MS = 10_000  # of a longer silence only this much counts as time in flight: nobody may have been up
REAPED_LATE_MS = 60_000  # an entry's maximum age is enforced by a process that may itself be away for a while


@dataclass(kw_only=True)
class Replay(Entries):
    max_age_ms: int  # of the run's settings
    lease_ms: int
    receipt: bool  # evidence: what the trainer credits
    event: int = 0  # publications
    credited: int = 0  # first version not credited
    oldest: int = 0
    stopped: str = ""
    _joined: bool = False  # has any trainer?
    _ms: int = 0
    _overdue: set[str] = field(default_factory=set)

    def apply(self, event: dict[str, Any]) -> None:
        """One line of the archive. Raises HeadraceError for one that cannot be replayed."""
        kind, before, self._id = event["kind"], self._id, event["id"]
        if kind != "created":
            if self.rules is None:
                raise HeadraceError(
                    f"the archive begins with event {self._id}, {kind!r}; expected `created`: lines are missing at its "
                    "start, and nothing can be replayed without them"
                )
            self.expect("monotone", position(self._id) > position(before), f"an event twice, or before {before}")
        self._pass_time(int(event["ms"]))
        self._expect_nothing_overdue()
        change = getattr(self, f"on_{kind}", None)
        if change is None:  # engines, leases, the gate: they move no entry
            return
        try:
            change(event)
        except KeyError as missing:
            raise HeadraceError(
                f"event {self._id}, {kind!r}: expected a field {missing}, found none: an older headrace wrote this "
                "archive, and this one cannot audit it"
            ) from None
        self._expect_soundness()

    # -- the run

    def on_created(self, event: dict[str, Any]) -> None:
        """Also again: Redis was replaced, and nothing of before is known any more."""
        self.rules = Rules(*(int(event[name]) for name in Rules.__dataclass_fields__))
        self.version = self.head = self.event = self.oldest = self.credited = 0
        self._joined = False
        self.forget_all()

    def on_joined(self, event: dict[str, Any]) -> None:
        """If the ledger is behind the trainer's checkpoint, it moves there; whatever was in flight is released."""
        checkpoint = int(event["checkpoint"])
        if checkpoint > self.head:
            left = next(iter(self.in_flight), "")
            self.expect("conservation", not left, "in flight across a Join ahead of the ledger", left)
            self.event += math.ceil((checkpoint - self.version) / self.rules.publish_every)
            self.head = self.version = checkpoint
            for buffer in [b for b in self.members if b < checkpoint]:
                self.forget(buffer)
        self.on_memory(event)
        for name, expected in (("head", self.head), ("version", self.version)):
            found = int(event[name])
            self.expect("monotone", found == expected, f"a Join at {checkpoint} leaves {name} {found}, not {expected}")
        if self.receipt:
            self._go_on_crediting(checkpoint, int(event["credited"]))
        self._joined = True

    def _go_on_crediting(self, checkpoint: int, found: int) -> None:
        """A trainer remembers the credits of its last η + 2 updates, and a Redis that was replaced none at all."""
        remembered = checkpoint - self.rules.max_staleness - 2 if self._joined else checkpoint
        expected = max(self.credited, remembered)
        self.expect("credited", found == expected, f"a Join at {checkpoint} goes on with {found}, not {expected}")
        if expected > self.credited:
            self.findings.notes.append(
                f"the evidence of updates {self.credited} to {expected - 1} is gone with what Redis lost"
            )
        self.credited = found

    def on_credited(self, event: dict[str, Any]) -> None:
        version, prompts, turn = int(event["version"]), json.loads(event["prompts"]), self.credited
        self.expect("credited", version == turn, f"credited where {turn} should be", buffer=version)
        self.expect("credited", version < self.head, "credited before its batch was consumed", buffer=version)
        if batch := self.consumed.get(version):  # else Redis lost it, or a checkpoint covers it
            entries = [self.entries[id] for id in batch if id in self.entries]
            entries.sort(key=lambda entry: (entry.version, entry.prompt))  # trainer/prefetch.py
            trained = [entry.prompt for entry in entries for _ in range(self.rules.group_size)]
            self.expect("credited", prompts == trained, "not the prompts of its batch, in its order", buffer=version)
        self.credited = max(version + 1, turn)

    def on_published(self, event: dict[str, Any]) -> None:
        version, found = int(event["version"]), int(event["event"])
        if version == self.version:  # its very first weights get their record
            expected = self.event
        else:
            newer = self.expect("monotone", version > self.version, f"version {version} after {self.version}")
            if newer:
                self.expect("order", version == self.head, f"version {version} is out before batch {version - 1}")
            if self.receipt:
                short = f"version {version} is out, and only updates below {self.credited} are credited"
                self.expect("credited", version <= self.credited, short)
            self.version = version if newer else self.head
            expected = self.event = self.event + 1
        self.expect("monotone", found == expected, f"version {version} is event {found}, not {expected}")

    def on_checkpoint(self, event: dict[str, Any]) -> None:
        version = int(event["version"])
        self.expect("order", version <= self.head, f"checkpoint {version} holds updates that had no batch yet")
        self.on_memory(event)

    def on_memory(self, event: dict[str, Any]) -> None:
        oldest = int(event["oldest"])
        self.expect("monotone", oldest >= self.oldest, f"the oldest kept batch is {oldest} after {self.oldest}")
        self.oldest = max(oldest, self.oldest)
        for buffer in [b for b in self.consumed if b < self.oldest]:
            self.forget(buffer)

    def on_stopped(self, event: dict[str, Any]) -> None:
        self.stopped = event["reason"]

    def on_resumed(self, event: dict[str, Any]) -> None:
        self.stopped = ""

    def _pass_time(self, ms: int) -> None:
        if self._ms:
            self.clock += min(max(0, ms - self._ms), QUIET_MS)
        self._ms = ms

    # -- invariants of the whole

    def _expect_soundness(self) -> None:
        rules, s = self.rules, 0
        if rules.buffer_capacity > rules.batch_size:
            self.findings.unchecked["soundness"] = "B' > B may break it for a while, harmlessly"
            return
        for buffer in range(self.head, self.version + rules.max_staleness + 1):
            s = max(s, 0) + max(0, rules.batch_size - len(self.members.get(buffer, ()))) - self.due[buffer]
            short = f"slack {s}: what is in flight cannot be placed in time any more"
            if not self.expect("soundness", s >= 0, short, buffer=buffer):
                return

    def _expect_nothing_overdue(self) -> None:
        entry = next(iter(self.in_flight.values()), None)
        if entry is None or entry.id in self._overdue:
            return
        age = self.clock - entry.since
        if age > self.max_age_ms + self.lease_ms + REAPED_LATE_MS:
            self._overdue.add(entry.id)
            most = f"{self.max_age_ms / 1000:g} s at most"
            self.expect("liveness", False, f"in flight for {age / 1000:.0f} s, {most}", entry.id)


def whole_history(lines: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The events that the ledger knows, and one sentence for each time that Redis lost its newest writes.

    The archive says so in a line of the kind `lost`; its id is that of the last event which was not lost.
    """
    kept, losses = [], []
    for line in lines:
        if line["kind"] != "lost":
            kept.append(line)
            continue
        before = len(kept)
        while kept and position(kept[-1]["id"]) > position(line["id"]):
            kept.pop()
        losses.append(f"Redis lost {before - len(kept)} events after {line['id']}; they are not replayed")
    return kept, losses


def position(id: str) -> tuple[int, int]:
    """An event's place: ids are ms-sequence."""
    ms, _, sequence = id.partition("-")
    return int(ms), int(sequence or 0)
