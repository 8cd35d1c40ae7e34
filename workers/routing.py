"""Which engine a new entry goes to: of those the ledger calls ready, the one with the fewest entries of this worker.

ledger: engines, versions ──▶ Routes ──▶ Engine (client) of the least loaded      in flight: {engine: count}
                  ▲              │ EngineGone, WrongWeights
                  └─mark_engine──┘     not ready: no entry goes there until the coordinator has verified it again
"""

import logging
from collections import Counter
from typing import Any

import aiohttp

from pipeline.weights import Label
from workers.engine import Engine
from workers.ledger import Ledger

log = logging.getLogger(__name__)


class Routes:
    """The engines of a run, as its ledger knows them. sampling: SGLang's parameters."""

    def __init__(self, ledger: Ledger, http: aiohttp.ClientSession, sampling: dict[str, Any], timeout_s: float):
        self._ledger, self._http, self._sampling, self._timeout_s = ledger, http, sampling, timeout_s
        self._labels: set[Label] = set()
        self.ready: dict[str, str] = {}  # name -> URL
        self.not_ready: dict[str, str] = {}  # name -> why
        self.in_flight: Counter[str] = Counter()

    async def refresh(self) -> None:
        """Read the engines' states anew."""
        engines = await self._ledger(self._ledger.coordinator.engines)
        self.ready = {e.name: e.url for e in engines if e.state == "ready" and e.url}
        self.not_ready = {e.name: e.reason or e.state for e in engines if e.name not in self.ready}

    def order(self) -> list[str]:
        """Names of the ready engines, least loaded first."""
        return sorted(self.ready, key=lambda name: (self.in_flight[name], name))

    def engine(self, name: str, **sampling: Any) -> Engine:
        """A client of it; `sampling` replaces single parameters."""
        return Engine(name, self.ready[name], self._http, self._sampling | sampling, self.published, self._timeout_s)

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
            log.warning("engine %s is not routed to: %s", name, reason)
            self.not_ready[name] = reason
            await self._ledger(self._ledger.coordinator.mark_engine, name, "failed", reason)

    def waiting(self) -> str:
        """What is missing, in words."""
        if not self.not_ready:
            return "no engine is registered"
        return "no engine is ready: " + "; ".join(f"{name} is {why}" for name, why in self.not_ready.items())
