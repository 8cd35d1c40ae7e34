"""Who is where in the model of the ledger, on plain dictionaries and lists, and what follows when a place opens.

    entries    name -> Entry            RESERVED · OCCUPIED · CONSUMED, tombstones too
    places     the open places of the window, one item each: a READY buffer has none, any other B' - occupied
    unplaced   who finds no place of their own, no later than their deadline, when all are placed one by one

There are no sums: whether everybody in flight can be placed in time is found out by placing them, the most urgent
first. So one admitted too many, a place too late and a move forgotten are all seen.
"""

import itertools
from dataclasses import dataclass, field

from pipeline.ledger_settings import Settings


@dataclass
class Prompt:
    state: str = "idle"  # idle · in flight · quarantined
    first: bool = False  # in line, before all others
    epoch: int = 0
    attempts: int = 0
    lost: int = 0
    visits: int = 0
    seen: list = field(default_factory=list)  # (event, outcome)


@dataclass
class Entry:
    name: str
    prompt: str
    worker: str
    version: int
    deadline: int
    event: int
    value: float
    attempt: int
    visit: int
    reserved_ms: int
    number: int
    state: str = "RESERVED"
    buffer: int | None = None
    placed: int | None = None
    finished: int | None = None
    scored: bool = False
    truncate_ms: int | None = None


class Places:
    """One run's entries and prompts; what can be placed, and where."""

    def __init__(self, settings: dict, prompts: list[str]):
        self.rules = Settings.read(settings)
        self.version = self.head = self.event = self.oldest = self.checkpointed = self.joined = 0
        self.credited, self.credits = 0, []  # of evidence "receipt": (prompt, retention, outcome), in order
        self.entries: dict[str, Entry] = {}
        self.prompts = {name: Prompt() for name in prompts}
        self.engines: dict[str, tuple[int, int]] = {}  # those that are ready -> version, its event
        self.leases: dict[str, int] = {}  # worker -> its end in ms
        self.drained: set[str] = set()
        self.published: dict[int, int] = {}  # version -> event
        self.trainer, self.trainers = "", set()
        self.paused = self.stopped = self.restarted = False
        self.failures = self.filtered = self.reap_after = 0
        self.awaited = -1
        self.reservations = self.finished = 0

    # -- who is where -------------------------------------------------------------------------------------------------

    def window(self) -> range:
        return range(self.head, self.version + self.rules.max_staleness + 1)

    def members(self, buffer: int) -> list[Entry]:
        """In the order of a batch."""
        inside = [e for e in self.entries.values() if e.buffer == buffer and e.state in ("OCCUPIED", "CONSUMED")]
        return sorted(inside, key=lambda e: (e.version, e.finished))

    def running(self) -> list[Entry]:
        """The most urgent first."""
        return sorted((e for e in self.entries.values() if e.state == "RESERVED"), key=lambda e: (e.deadline, e.number))

    def ready(self, buffer: int) -> bool:
        return len(self.members(buffer)) >= self.rules.batch_size

    def open(self, buffer: int) -> int:
        return 0 if self.ready(buffer) else self.rules.buffer_capacity - len(self.members(buffer))

    def idle(self) -> list[str]:
        return [name for name, prompt in self.prompts.items() if prompt.state == "idle"]

    def stored(self) -> int:
        kept = [e for e in self.entries.values() if e.state in ("OCCUPIED", "CONSUMED")]
        return len(kept) * self.rules.group_size

    def memory_full(self, more: int) -> bool:
        """Are `more` trajectories, besides those stored and in flight, too many?"""
        trajectories = self.stored() + len(self.running()) * self.rules.group_launch + more
        return 0 < self.rules.byte_budget < trajectories * self.rules.max_trajectory_bytes

    # -- placing one by one -------------------------------------------------------------------------------------------

    def unplaced(self, deadlines: list[int], taken: int | None = None) -> list[int]:
        """Deadlines of those who find no place, if one place of the buffer `taken` is gone already."""
        places = [b for b in self.window() for _ in range(self.open(b) - (b == taken))]
        left = []
        for deadline in sorted(deadlines):
            if places and places[0] <= deadline:
                places.pop(0)
            else:
                left.append(deadline)
        return left

    def deadlines(self) -> list[int]:
        return [e.deadline for e in self.running()]

    def admits(self, deadline: int) -> bool:
        """Does one more, with this deadline, leave a place for itself and for all that are due no earlier?"""
        return not any(late >= deadline for late in self.unplaced([*self.deadlines(), deadline]))

    def spares(self, others: list[int], buffer: int, last: int) -> bool:
        """Does a place taken in `buffer` harm none of the others that are due before `last`?"""
        return not any(buffer <= late < last for late in self.unplaced(others, buffer))

    def place_for(self, entry: Entry) -> int | None:
        others = [e.deadline for e in self.running() if e is not entry]
        unfilled = [b for b in self.window() if b <= entry.deadline and not self.ready(b)]
        fits = [b for b in unfilled if self.spares(others, b, entry.deadline)]
        return next(iter(fits or unfilled), None)

    def slot_view(self) -> dict[int, tuple[int, int]]:
        """buffer -> (placeholders, over): each reservation has the latest open place that its deadline allows."""
        places = [b for b in reversed(self.window()) for _ in range(self.open(b))]
        shown = dict.fromkeys(self.window(), 0)
        over = 0
        for deadline in sorted(self.deadlines(), reverse=True):
            place = next((b for b in places if b <= deadline), None)
            if place is None:
                over += 1
            else:
                places.remove(place)
                shown[place] += 1
        return {b: (count, over if b == self.head else 0) for b, count in shown.items()}

    def settle(self) -> None:
        """Surplus and pull forward, until nothing changes."""
        while True:
            ready = list(itertools.takewhile(self.ready, self.window()))
            surplus = [e for e in self.running() if ready and e.deadline <= ready[-1]]
            for entry in surplus:
                self.drop(entry, "surplus")
            if not surplus and not self.pull_forward():
                return

    def pull_forward(self) -> bool:
        for b in self.window():
            later = [e for c in self.window() if c > b for e in self.members(c)]
            for entry in sorted(later, key=lambda e: (e.version, e.finished)) if not self.ready(b) else ():
                if self.spares(self.deadlines(), b, entry.buffer):
                    entry.buffer = b
                    return True
        return False

    def drop(self, entry: Entry, reason: str) -> None:
        """A reservation ends. failed and retry count as attempts, lost by itself, cancelled and surplus not at all."""
        entry.state = "SURPLUS" if reason == "surplus" else "RELEASED"
        prompt = self.prompts[entry.prompt]
        prompt.state = "idle"
        if reason in ("cancelled", "surplus"):
            return
        prompt.first = True
        if reason == "lost":
            prompt.lost += 1
        else:
            prompt.attempts += 1
        over = prompt.lost >= self.rules.max_lost if reason == "lost" else prompt.attempts >= self.rules.max_attempts
        if over:
            prompt.state, prompt.first = "quarantined", False
            if all(p.state == "quarantined" for p in self.prompts.values()):
                self.stop()
        if reason == "failed":
            self.failures += 1
            if self.failures >= self.rules.max_consecutive_failures:
                self.stop()
