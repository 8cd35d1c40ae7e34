"""The batch of the next update is fetched, decoded and packed while the current one trains.

    trainer    consume v ─▶ take ─▶ update v ─▶ publish ─▶ checkpoint ─▶ wait ─▶ consume v+1 ─▶ take ─▶ update v+1 …
    a thread                 └─▶ peek v+1, peek, … READY ─▶ fetch ─▶ decode ─▶ prepare ─────────────┘

What is peeked is a guess: only what Consume answers is trained on, and what differs is fetched then. Peek changes
nothing, so whoever dies here has taken nothing. Each rank has its own thread, and the thread its own connection (the
client's pool gives one to each).

The batch is in the order of versions and prompts, which who finishes first has no part in; only entries of one prompt
are in the ledger's.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import redis

from pipeline.coordinator import Coordinator, Ref
from pipeline.errors import HeadraceError
from pipeline.trajectory import Trajectory
from trainer.update import Prepared

LOOK_S = 0.1  # between two peeks

Fetched = dict[Ref, Trajectory]


class Prefetch:
    """`prepare`: Updater.prepare. Ends its thread when it is left as a context."""

    def __init__(self, ledger: Coordinator, prepare: Callable[[list[Trajectory]], Prepared]):
        self._ledger, self._prepare = ledger, prepare
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._over = threading.Event()
        self._found: Future[tuple[Fetched, Prepared] | None] = Future()
        self._found.set_result(None)

    def look_for(self, version: int) -> None:
        """Begin to look for buffer `version`; what was found before is forgotten."""
        self._over.set()
        self._over = threading.Event()
        self._found = self._thread.submit(self._look, version, self._over)

    def take(self, refs: Sequence[Ref]) -> Prepared:
        """The batch that Consume has answered with. May be called again after an error; raises what `fetch` raises."""
        self._over.set()  # what is fetched already is waited for
        found, prepared = self._found.result() or ({}, None)
        if found.keys() == set(refs):
            return prepared
        found = found | self._fetch([ref for ref in refs if ref not in found])
        return self._in_order([found[ref] for ref in refs])

    def _look(self, version: int, over: threading.Event) -> tuple[Fetched, Prepared] | None:
        try:
            while not over.is_set():
                if refs := self._ledger.peek(version):
                    found = self._fetch(refs)
                    return found, self._in_order(found.values())
                over.wait(LOOK_S)
        except (HeadraceError, redis.RedisError):
            pass  # the trainer's own calls meet it too, and know what to do
        return None

    def _fetch(self, refs: Sequence[Ref]) -> Fetched:
        return dict(zip(refs, self._ledger.fetch(refs), strict=True))

    def _in_order(self, trajectories: Iterable[Trajectory]) -> Prepared:
        return self._prepare(sorted(trajectories, key=lambda t: (t.version, t.prompt_id)))

    def __enter__(self) -> "Prefetch":
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.shutdown()
