"""The batch of the next update is fetched, decoded and packed while the current one trains.

    trainer    consume v ─▶ take ─▶ update v ─▶ publish ─▶ checkpoint ─▶ wait ─▶ consume v+1 ─▶ take ─▶ update v+1 …
    a thread                 └─▶ peek v+1, peek, … READY ─▶ fetch ─▶ decode ─▶ prepare ─────────────┘

What is peeked is a guess: only what Consume answers is trained on, and what differs is fetched then. Peek changes
nothing, so whoever dies here has taken nothing. Each rank has its own thread, and the thread its own connection (the
client's pool gives one to each).
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import redis

from pipeline.coordinator import Coordinator, Ref
from pipeline.errors import HeadraceError
from pipeline.trajectory import Trajectory
from trainer.update import Prepared

LOOK_S = 0.1  # between two peeks


class Prefetch:
    """`prepare`: Updater.prepare. Ends its thread when it is left as a context."""

    def __init__(self, ledger: Coordinator, prepare: Callable[[list[Trajectory]], Prepared]):
        self._ledger, self._prepare = ledger, prepare
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._over = threading.Event()
        self._found: Future[tuple[tuple[Ref, ...], Prepared] | None] = Future()
        self._found.set_result(None)

    def look_for(self, version: int) -> None:
        """Begin to look for buffer `version`; what was found before is forgotten."""
        self._over.set()
        self._over = threading.Event()
        self._found = self._thread.submit(self._look, version, self._over)

    def take(self, refs: Sequence[Ref]) -> Prepared:
        """The batch that Consume has answered with. May be called again after an error; raises what `fetch` raises."""
        self._over.set()  # what is fetched already is waited for
        found, prepared = self._found.result() or ((), None)
        if found == refs:
            return prepared
        known = dict(zip(found, prepared.trajectories if prepared else (), strict=True))
        missing = [ref for ref in refs if ref not in known]
        known |= zip(missing, self._ledger.fetch(missing), strict=True)
        return self._prepare([known[ref] for ref in refs])

    def _look(self, version: int, over: threading.Event) -> tuple[tuple[Ref, ...], Prepared] | None:
        try:
            while not over.is_set():
                if refs := self._ledger.peek(version):
                    return refs, self._prepare(self._ledger.fetch(refs))
                over.wait(LOOK_S)
        except (HeadraceError, redis.RedisError):
            pass  # the trainer's own calls meet it too, and know what to do
        return None

    def __enter__(self) -> "Prefetch":
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.shutdown()
