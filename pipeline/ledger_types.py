"""What goes into the ledger's calls and what comes out of them.

An expected outcome is a value: `Refused("FULL")` is back-pressure, not an error. Versions count optimizer updates.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.weights import Label


@dataclass(frozen=True)
class Reservation:
    entry: str
    prompt: str
    payload: bytes
    version: int  # V_traj
    deadline: int  # the last buffer it may be trained in: V_traj + η
    event: int  # policy event of V_traj
    value: float  # the prompt's, frozen now
    attempt: int  # 1 for a fresh prompt
    visit: int = 0  # how often the prompt was finished before; negative: outside the ledger

    @classmethod
    def outside_ledger(
        cls, problem: Mapping[str, Any], entry: str, version: int = 0, attempt: int = 1, number: int = 0
    ) -> "Reservation":
        """For an episode that no buffer waits for: a scripted trace, an evaluation. problem: a record with its `id`;
        number: of the episodes on it. Its chance is that of no visit: a first value would know the first outcome."""
        payload, visit = json.dumps(problem).encode(), -1 - number
        return cls(entry, problem["id"], payload, version, version, 0, 0.5, attempt, visit)


@dataclass(frozen=True)
class Refused:
    reason: str


@dataclass(frozen=True)
class Placed:
    buffer: int


@dataclass(frozen=True)
class Surplus:
    """Finished, and no open buffer within its deadline needs it."""


@dataclass(frozen=True)
class Filtered:
    """Finished, and its group carries no learning signal."""


@dataclass(frozen=True)
class Commands:
    """What a worker must do: stop these entries; finish these with what they have; take no more."""

    cancelled: tuple[str, ...]
    truncate: tuple[str, ...]
    drain: bool


@dataclass(frozen=True)
class Joined:
    version: int
    head: int
    event: int
    dropped: int  # of `recent`, entries that lay in the ledger still
    released: int  # entries in flight, given back because the ledger was behind
    credited: int  # first version that is not credited yet, with evidence "receipt"


@dataclass(frozen=True)
class Ref:
    """Address of one payload: `id` in the stream of the worker incarnation `stream`."""

    entry: str
    member: int
    stream: str
    id: str


@dataclass(frozen=True)
class Batch:
    version: int
    refs: tuple[Ref, ...]


def batch_digest(entries: Sequence[str]) -> str:
    """What names a batch in metrics.jsonl: over its entries in order, one space between them."""
    return hashlib.sha256(" ".join(entries).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Published:
    event: int


@dataclass(frozen=True)
class Credited:
    """What an update was trained on is evidence now."""


@dataclass(frozen=True)
class Replayed:
    """This version is out, or credited, already; nothing changed."""


@dataclass(frozen=True)
class BufferView:
    """One buffer as a reader sees it; reserved counts placeholders, due the reservations whose deadline it is."""

    id: int
    state: str  # PENDING | READY | READY_WITH_CAPACITY | STUCK | CONSUMED
    occupied: int
    reserved: int
    due: int
    over: int
    capacity: int
    target: int
    min_version: int | None


@dataclass(frozen=True)
class Weights:
    """Published weights; digest: at least the first 16 hex digits of the manifest's."""

    version: int
    path: str  # relative to the run's folder
    digest: str
    event: int
    time: int  # ms

    def label(self, run: str) -> Label:
        return Label(run, self.version, self.digest[:16])


@dataclass(frozen=True)
class EngineView:
    """One engine as a reader sees it."""

    name: str
    url: str
    version: int  # -1: none verified yet
    state: str
    reason: str
