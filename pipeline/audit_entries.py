"""The entries of a replayed ledger: each in exactly one state, and each of its moves held against what it was before.

    RESERVED ─placed─▶ OCCUPIED ─consumed─▶ CONSUMED
        │ released, surplus, filtered   │ dropped, moved
        └──────────▶ GONE ◀─────────────┘

After a fault the replay goes on as if the event had been right, so that one fault is one finding.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pipeline.audit_findings import Findings

RESERVED, OCCUPIED, CONSUMED, GONE = "RESERVED", "OCCUPIED", "CONSUMED", "GONE"


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
    group_size: int  # [N]


@dataclass
class Entries:
    findings: Findings
    rules: Rules | None = None
    version: int = 0
    head: int = 0
    clock: int = 0  # ms of activity
    entries: dict[str, Entry] = field(default_factory=dict)
    in_flight: dict[str, Entry] = field(default_factory=dict)  # the oldest first
    prompts: dict[str, str] = field(default_factory=dict)  # in flight -> entry
    members: dict[int, set[str]] = field(default_factory=dict)  # buffer -> OCCUPIED entries
    due: Counter = field(default_factory=Counter)  # deadline -> reservations
    consumed: dict[int, list[str]] = field(default_factory=dict)  # buffer -> its batch
    _id: str = ""  # of the present event
    _finished: int = 0

    def expect(self, name: str, true: bool, otherwise: str, entry: str = "", buffer: int | None = None) -> bool:
        return self.findings.expect(name, true, otherwise, entry, buffer, self._id)

    def forget_all(self) -> None:
        for known in (self.entries, self.in_flight, self.prompts, self.members, self.due, self.consumed):
            known.clear()

    def forget(self, buffer: int) -> None:
        for id in (*self.members.pop(buffer, ()), *self.consumed.pop(buffer, ())):
            if id in self.entries:
                self.entries[id].state = GONE

    # -- events, by their kind

    def on_reserved(self, event: dict[str, Any]) -> None:
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

    def on_placed(self, event: dict[str, Any]) -> None:
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

    def on_moved(self, event: dict[str, Any]) -> None:
        before, buffer = int(event["from"]), int(event["buffer"])
        if entry := self._leave_buffer(event, "moved", before):
            self._put(entry, buffer)

    def on_dropped(self, event: dict[str, Any]) -> None:
        """A trainer had trained it already, before the ledger lost that."""
        if entry := self._leave_buffer(event, "dropped"):
            entry.state = GONE

    def on_released(self, event: dict[str, Any]) -> None:
        self._leave_flight(event, "released")

    def on_surplus(self, event: dict[str, Any]) -> None:
        self._leave_flight(event, "surplus")

    def on_filtered(self, event: dict[str, Any]) -> None:
        self._leave_flight(event, "filtered")

    def on_truncate(self, event: dict[str, Any]) -> None:
        entry = self.entries.get(event["entry"])
        known = entry is not None and entry.state == RESERVED
        self.expect("conservation", known, f"told to stop, and is {_state(entry)}", event["entry"])

    def on_consumed(self, event: dict[str, Any]) -> None:
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


def _state(entry: Entry | None) -> str:
    if entry is None:
        return "not reserved"
    return f"{entry.state} in buffer {entry.buffer}" if entry.buffer is not None else entry.state
