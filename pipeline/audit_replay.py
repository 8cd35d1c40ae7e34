"""The archive of a run's events, replayed as a ledger of its own: what the scripts did is done again, by other code.

    events.jsonl ─▶ whole_history ─▶ Replay.apply(event), one after the other ─▶ Findings
                    without what Redis lost

    RESERVED ─placed─▶ OCCUPIED ─consumed─▶ CONSUMED       entries: entry -> Entry, in exactly one state
        │ released, surplus, filtered   │ dropped, moved
        └──────────▶ GONE ◀─────────────┘

Every event is held against what the ledger was before it. After a fault the replay goes on as if the event had been
right, so that one fault is one finding.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pipeline.audit_findings import Findings
from pipeline.errors import HeadraceError

RESERVED, OCCUPIED, CONSUMED, GONE = "RESERVED", "OCCUPIED", "CONSUMED", "GONE"
QUIET_MS = 10_000  # of a longer silence only this much counts as time in flight: nobody may have been up
REAPED_LATE_MS = 60_000  # an entry's maximum age is enforced by a process that may itself be away for a while


@dataclass
class Entry:
    id: str
    prompt: str
    version: int  # V_traj
    deadline: int
    since: int  # ms of the replay's own clock
    state: str = RESERVED
    buffer: int | None = None
    finished: int = 0  # finishing number


@dataclass(frozen=True)
class Rules:
    """Of the event `created`; names as in protocol.md, in brackets."""

    max_staleness: int  # [η]
    batch_size: int  # [B]
    buffer_capacity: int  # [B']
    publish_every: int  # [P]


@dataclass
class Replay:
    findings: Findings
    max_age_ms: int  # of the run's settings
    lease_ms: int
    rules: Rules | None = None
    version: int = 0
    head: int = 0
    event: int = 0  # publications
    oldest: int = 0
    clock: int = 0  # ms of activity
    entries: dict[str, Entry] = field(default_factory=dict)
    in_flight: dict[str, Entry] = field(default_factory=dict)  # the oldest first
    prompts: dict[str, str] = field(default_factory=dict)  # in flight -> entry
    members: dict[int, set[str]] = field(default_factory=dict)  # buffer -> OCCUPIED entries
    due: Counter = field(default_factory=Counter)  # deadline -> reservations
    consumed: dict[int, list[str]] = field(default_factory=dict)  # buffer -> its batch
    stopped: str = ""
    _ms: int = 0
    _id: str = ""  # of the present event
    _finished: int = 0
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
        change = getattr(self, f"_{kind}", None)
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

    def expect(self, name: str, true: bool, otherwise: str, entry: str = "", buffer: int | None = None) -> bool:
        return self.findings.expect(name, true, otherwise, entry, buffer, self._id)

    # -- the run

    def _created(self, event: dict[str, Any]) -> None:
        """Also again: Redis was replaced, and nothing of before is known any more."""
        self.rules = Rules(*(int(event[name]) for name in Rules.__dataclass_fields__))
        self.version = self.head = self.event = self.oldest = 0
        for known in (self.entries, self.in_flight, self.prompts, self.members, self.due, self.consumed):
            known.clear()

    def _joined(self, event: dict[str, Any]) -> None:
        """The ledger is behind the trainer's checkpoint: it moves there, and everything in flight has been released."""
        checkpoint = int(event["checkpoint"])
        if checkpoint > self.head:
            left = next(iter(self.in_flight), "")
            self.expect("conservation", not left, "in flight across a Join ahead of the ledger", left)
            self.event += math.ceil((checkpoint - self.version) / self.rules.publish_every)
            self.head = self.version = checkpoint
        for buffer in [b for b in (*self.members, *self.consumed) if b < checkpoint]:
            self._forget(buffer)
        self.oldest = checkpoint
        for name, expected in (("head", self.head), ("version", self.version)):
            found = int(event[name])
            self.expect("monotone", found == expected, f"a Join at {checkpoint} leaves {name} {found}, not {expected}")

    def _published(self, event: dict[str, Any]) -> None:
        version, found = int(event["version"]), int(event["event"])
        if version == self.version:  # its very first weights get their record
            expected = self.event
        else:
            newer = self.expect("monotone", version > self.version, f"version {version} after {self.version}")
            if newer:
                self.expect("order", version == self.head, f"version {version} is out before batch {version - 1}")
            self.version = version if newer else self.head
            expected = self.event = self.event + 1
        self.expect("monotone", found == expected, f"version {version} is event {found}, not {expected}")

    def _checkpoint(self, event: dict[str, Any]) -> None:
        version = int(event["version"])
        self.expect("order", version <= self.head, f"checkpoint {version} holds updates that had no batch yet")
        self._memory(event)

    def _memory(self, event: dict[str, Any]) -> None:
        oldest = int(event["oldest"])
        self.expect("monotone", oldest >= self.oldest, f"the oldest kept batch is {oldest} after {self.oldest}")
        self.oldest = max(oldest, self.oldest)
        for buffer in [b for b in self.consumed if b < self.oldest]:
            self._forget(buffer)

    def _stopped(self, event: dict[str, Any]) -> None:
        self.stopped = event["reason"]

    def _resumed(self, event: dict[str, Any]) -> None:
        self.stopped = ""

    # -- an entry's way

    def _reserved(self, event: dict[str, Any]) -> None:
        id, prompt, version, deadline = event["entry"], event["prompt"], int(event["version"]), int(event["deadline"])
        known = self.entries.get(id)
        self.expect("conservation", known is None, f"reserved, and was {known and known.state} already", id)
        other = self.prompts.get(prompt)
        self.expect("conservation", other is None, f"its prompt {prompt} is in flight in entry {other} already", id)
        self.expect("bound", version <= self.version, f"V_traj {version} is newer than the version, {self.version}", id)
        last = version + self.rules.max_staleness
        self.expect("bound", deadline == last, f"deadline {deadline}, expected V_traj + η = {last}", id)
        entry = self.entries[id] = self.in_flight[id] = Entry(id, prompt, version, deadline, self.clock)
        self.prompts[prompt] = entry.id
        self.due[deadline] += 1

    def _placed(self, event: dict[str, Any]) -> None:
        id, buffer, version = event["entry"], int(event["buffer"]), int(event["version"])
        oldest = int(event["oldest"])
        if (entry := self._leave_flight(event, "placed")) is None:
            return
        self.expect(
            "bound", version == entry.version, f"placed with V_traj {version}, reserved with {entry.version}", id
        )
        self.expect("bound", oldest >= entry.version, f"a segment of version {oldest} < V_traj {entry.version}", id)
        self._finished += 1
        entry.finished = self._finished
        self._put(entry, buffer)

    def _moved(self, event: dict[str, Any]) -> None:
        before, buffer = int(event["from"]), int(event["buffer"])
        if entry := self._leave_buffer(event, "moved", before):
            self._put(entry, buffer)

    def _dropped(self, event: dict[str, Any]) -> None:
        """A trainer had trained it already, before the ledger lost that."""
        if entry := self._leave_buffer(event, "dropped"):
            entry.state = GONE

    def _released(self, event: dict[str, Any]) -> None:
        self._leave_flight(event, "released")

    def _surplus(self, event: dict[str, Any]) -> None:
        self._leave_flight(event, "surplus")

    def _filtered(self, event: dict[str, Any]) -> None:
        self._leave_flight(event, "filtered")

    def _truncate(self, event: dict[str, Any]) -> None:
        entry = self.entries.get(event["entry"])
        known = entry is not None and entry.state == RESERVED
        self.expect("conservation", known, f"told to stop, and is {_state(entry)}", event["entry"])

    def _consumed(self, event: dict[str, Any]) -> None:
        buffer, ids, size = int(event["buffer"]), event["entries"].split(), self.rules.batch_size
        self.expect("order", buffer == self.head, f"consumed when head was {self.head}", buffer=buffer)
        limit = self.version + self.rules.publish_every
        self.expect("order", buffer < limit, f"consumed before version {self.version} was replaced", buffer=buffer)
        self.expect("liveness", len(ids) == size, f"a batch of {len(ids)} entries, not {size}", buffer=buffer)
        whole = self.expect("once", len(ids) == len(set(ids)), "an entry is twice in this batch", buffer=buffer)
        for id in ids:
            entry = self.entries.get(id)
            twice = entry is not None and entry.state == CONSUMED
            where = f" in buffer {entry.buffer}" if twice else ""
            fresh = self.expect("once", not twice, f"consumed{where} already", id, buffer)
            here = entry is not None and entry.state == OCCUPIED and entry.buffer == buffer
            whole &= fresh and self.expect(
                "conservation", here or twice, f"consumed, and is {_state(entry)}", id, buffer
            )
            if entry is None:
                continue
            age = buffer - entry.version
            late = f"staleness {age} exceeds η = {self.rules.max_staleness}"
            self.expect("bound", 0 <= age <= self.rules.max_staleness, late, id, buffer)
        if whole:
            left = sorted(self.members.get(buffer, set()) - set(ids))
            self.expect("conservation", not left, f"left in a consumed buffer: {' '.join(left)}", buffer=buffer)
            order = sorted(ids, key=lambda id: (self.entries[id].version, self.entries[id].finished))
            self.expect("order", ids == order, "not in the order (V_traj, finishing number)", buffer=buffer)
        for id in {*ids, *self.members.pop(buffer, set())} & self.entries.keys():
            self.entries[id].state, self.entries[id].buffer = CONSUMED, buffer
        self.consumed[buffer] = ids
        self.head = buffer + 1

    # -- what the events have in common

    def _leave_flight(self, event: dict[str, Any], how: str) -> Entry | None:
        id, prompt = event["entry"], event["prompt"]
        entry = self.entries.get(id)
        known = entry is not None and entry.state == RESERVED
        if not self.expect("conservation", known, f"{how}, and is {_state(entry)}", id):
            return None
        same = prompt == entry.prompt
        self.expect("conservation", same, f"{how} with prompt {prompt}, reserved with {entry.prompt}", id)
        entry.state = GONE
        del self.in_flight[id]
        self.prompts.pop(entry.prompt, None)
        self.due[entry.deadline] -= 1
        return entry

    def _leave_buffer(self, event: dict[str, Any], how: str, buffer: int | None = None) -> Entry | None:
        entry = self.entries.get(event["entry"])
        there = entry is not None and entry.state == OCCUPIED and buffer in (None, entry.buffer)
        if not self.expect("conservation", there, f"{how}, and is {_state(entry)}", event["entry"], buffer):
            return None
        self.members[entry.buffer].discard(entry.id)
        return entry

    def _put(self, entry: Entry, buffer: int) -> None:
        entry.state, entry.buffer = OCCUPIED, buffer
        in_time = self.head <= buffer <= entry.deadline
        self.expect("bound", in_time, f"placed outside of {self.head} .. {entry.deadline}", entry.id, buffer)
        members = self.members.setdefault(buffer, set())
        members.add(entry.id)
        fits, size = len(members) <= self.rules.batch_size, self.rules.batch_size
        self.expect("capacity", fits, f"{len(members)} entries, {size} fit", entry.id, buffer)

    def _forget(self, buffer: int) -> None:
        for id in (*self.members.pop(buffer, ()), *self.consumed.pop(buffer, ())):
            if id in self.entries:
                self.entries[id].state = GONE

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


def _state(entry: Entry | None) -> str:
    if entry is None:
        return "not reserved"
    return f"{entry.state} in buffer {entry.buffer}" if entry.buffer is not None else entry.state
