"""The ledger as asyncio code calls it: in a thread, again when Redis is away for a moment, and with a bell.

await ledger(c.reserve, worker, engine) ──thread──▶ Coordinator ──▶ Redis
                      └── away: again after 0.1, 0.2, … 2 s, for a minute at most; every transition may be repeated
events ──▶ Bell: set when something happened that a refused Reserve may have waited for; whoever else listens is told
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pipeline.coordinator import Coordinator
from pipeline.errors import HeadraceError, RolledBack
from pipeline.events import Event
from pipeline.redis_client import AWAY, REDIS_AWAY_S

log = logging.getLogger(__name__)

BATCH_S = 0.1  # events come in hundreds a second, mostly this worker's own: look at them ten times a second
# What can turn a refusal into an admission: a place, a prompt, memory, an engine, an open gate.
OPENING = {
    "published",
    "consumed",
    "checkpoint",
    "memory",
    "released",
    "placed",
    "surplus",
    "filtered",
    "prompts",
    "engine",
    "resumed",
    "joined",
}


class LedgerGone(HeadraceError):
    """Redis has been away for longer than a worker waits."""

    code = "LEDGER_GONE"


class Ledger:
    """Calls of a Coordinator, or of anything else that speaks to its Redis."""

    def __init__(self, coordinator: Coordinator, patience_s: float = REDIS_AWAY_S):
        self.coordinator, self.patience_s = coordinator, patience_s
        self.away = ""  # why the present call is being repeated, for whoever asks what this process waits for

    async def __call__(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What `call` returns. Raises LedgerGone after patience_s, and at once whatever else the call raises."""
        begun, delay = time.monotonic(), 0.1
        while True:
            try:
                answer = await asyncio.to_thread(call, *arguments, **named)
            except (*AWAY, RolledBack) as error:
                if not self.away:
                    log.warning("%s; trying again for %.0f s", error, self.patience_s)
                self.away = str(error)
                if time.monotonic() > begun + self.patience_s:
                    raise LedgerGone(
                        f"the ledger has not answered for {self.patience_s:.0f} s: {error}; start Redis again, then "
                        "this worker: what was handed in is kept, what was in flight is given back when its lease ends"
                    ) from None
                await asyncio.sleep(delay)
                delay = min(2 * delay, 2.0)
            else:
                self.away = ""
                return answer


class Bell:
    """Sets `rung` when a refused Reserve is worth another try; `hear` is told all events before that."""

    def __init__(self, ledger: Ledger, rung: asyncio.Event, hear: Callable[[list[Event]], Awaitable[None]]):
        self.ledger, self.rung, self.hear = ledger, rung, hear

    async def listen(self) -> None:
        """Until cancelled."""
        coordinator = self.ledger.coordinator
        last = await self.ledger(coordinator.last_event)
        while True:
            found = await self.ledger(coordinator.wait, last, 1.0)
            if found:
                last = found[-1].id
                await self.hear(found)
                if OPENING & {event.kind for event in found}:
                    self.rung.set()
                await asyncio.sleep(BATCH_S)
