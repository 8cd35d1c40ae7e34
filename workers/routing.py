"""Which engine a request goes to, of those that the ledger calls ready and whose version the entry allows.

ledger: engines, versions ──▶ Routes ──order(entry, V_traj)──▶ names, best first       in_flight: {engine: episodes}
                  ▲              │ EngineGone, WrongWeights      least_loaded  the fewest episodes of this worker
                  └─mark_engine──┘                               sticky        by a hash of the entry, if not overloaded
not ready (draining, loading, failed): no entry and no turn goes there until the coordinator has verified it again
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import Counter
from typing import Any

import aiohttp

from pipeline import config
from pipeline.errors import HeadraceError
from pipeline.ledger_types import EngineView
from pipeline.weights import Label
from workers.engine import Engine
from workers.ledger import Ledger

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 1.0
OVERLOADED = 2  # times the mean number of episodes, above which an engine gets no further sticky ones


class NoEngine(HeadraceError):
    """No engine could be used for longer than one takes to start and load."""

    code = "NO_ENGINE"


class Routes:
    """The engines of a run, as its ledger knows them. sampling: SGLang's parameters."""

    def __init__(self, settings: config.Config, ledger: Ledger, http: aiohttp.ClientSession, sampling: dict[str, Any]):
        self._ledger, self._http, self._sampling = ledger, http, sampling
        self._timeout_s, self._sticky = settings.rollout.request_timeout_s, settings.rollout.routing == "sticky"
        self.patience_s = settings.engines.start_timeout_s + settings.engines.load_timeout_s
        self._labels: set[Label] = set()
        self._changed = asyncio.Event()  # replaced when it is set
        self._reading, self._read = asyncio.Lock(), 0.0  # when the newest answer was asked for
        self.ready: dict[str, EngineView] = {}
        self.not_ready: dict[str, str] = {}  # name -> why
        self.in_flight: Counter[str] = Counter()  # episodes of this worker, at the engine they were at last
        self.waiters = 0  # episodes that no engine can go on with at present

    async def refresh(self) -> None:
        """Read the engines' states anew; once for all who ask at the same time."""
        asked = time.monotonic()
        async with self._reading:
            if self._read > asked:
                return
            begun = time.monotonic()
            engines = await self._ledger(self._ledger.coordinator.engines)
            self.ready = {e.name: e for e in engines if e.state == "ready" and e.url}
            self.not_ready = {e.name: _why(e.state, e.reason) for e in engines if e.name not in self.ready}
            self._read = begun
            self._changed.set()
            self._changed = asyncio.Event()

    def order(self, entry: str, at_least: int = 0, at: str | None = None) -> list[str]:
        """Names of the engines that may serve this entry, best first. at: where the episode that asks is now."""

        def load(name: str) -> int:
            return self.in_flight[name] - (name == at)

        names = [name for name, engine in self.ready.items() if engine.version >= at_least]
        names.sort(key=lambda name: (load(name), name != at, name))
        if self._sticky and names:
            own = max(names, key=lambda name: hashlib.blake2b(f"{entry} {name}".encode(), digest_size=8).digest())
            if load(own) <= OVERLOADED * sum(map(load, names)) / len(names):
                names.sort(key=lambda name: name != own)
        return names

    async def choose(self, entry: str, at_least: int, at: str) -> Engine:
        """The engine for an episode's next request; waits for one. Raises NoEngine after `patience_s`."""
        until = time.monotonic() + self.patience_s
        self.waiters += 1
        try:
            while not (names := self.order(entry, at_least, at)):
                if time.monotonic() > until:
                    raise NoEngine(
                        f"entry {entry}: no engine serves version {at_least} or newer ({self.waiting()}); start one, "
                        "or look at its log"
                    )
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_S):
                        await self._changed.wait()
        finally:
            self.waiters -= 1
        return self.engine(names[0])

    def engine(self, name: str, **sampling: Any) -> Engine:
        """A client of it; `sampling` replaces single parameters."""
        parameters = self._sampling | sampling
        return Engine(name, self.ready[name].url, self._http, parameters, self.published, self._timeout_s)

    async def published(self, label: Label) -> bool:
        """Whether the ledger knows these weights; it is asked again about a label not seen before."""
        if label not in self._labels:
            run = self._ledger.coordinator.run
            versions = await self._ledger(self._ledger.coordinator.versions)
            self._labels = {weights.label(run) for weights in versions.values()}
            if not versions and (label.run, label.version) == (run, 0):
                return True  # the coordinator loaded it; the trainer, which publishes version 0, is still starting
        return label in self._labels

    async def mark(self, name: str, reason: str) -> None:
        """Nothing more goes to this engine until the coordinator has verified it again."""
        if self.ready.pop(name, None):
            log.warning("not routed to any more: %s", reason, extra={"engine": name})
            self.not_ready[name] = _why("failed", reason)
            await self._ledger(self._ledger.coordinator.mark_engine, name, "failed", reason)

    def waiting(self) -> str:
        """What is missing, in words."""
        if self.ready:
            return "ready: " + ", ".join(f"{name} at version {e.version}" for name, e in self.ready.items())
        if not self.not_ready:
            return "no engine is registered"
        return "no engine is ready: " + "; ".join(f"{name} is {why}" for name, why in self.not_ready.items())


def _why(state: str, reason: str) -> str:
    return f"{state}: {reason}" if reason else state
