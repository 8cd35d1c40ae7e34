"""Where a worker's next entry comes from: the engine that it goes to, or why there is none, in words.

reserve ─▶ ready engines, best first ─▶ the ledger ─▶ (Reservation, engine's name)
                                                    └ Refused: ENGINE STALE FULL │ NO_PROMPT PAUSED MEMORY
                                                               try the next one  │ the same for every engine
"""

import logging
import time
import uuid
from collections import Counter

from pipeline.coordinator import Refused, Reservation
from workers.ledger import Ledger
from workers.routing import NoEngine, Routes

log = logging.getLogger(__name__)

OF_ONE_ENGINE = {"ENGINE", "STALE", "FULL"}
WAITS = {
    "FULL": "a place in the buffers: all are taken by finished trajectories or those in flight",
    "STALE": "a newer version in an engine: what they serve now could not be trained in time",
    "MEMORY": "memory: buffers.byte_budget is reached until the trainer's next checkpoint",
    "NO_PROMPT": "an idle prompt: all are in flight or quarantined",
}


class Admission:
    """What one worker incarnation asks the ledger for."""

    def __init__(self, ledger: Ledger, routes: Routes, incarnation: str):
        self.ledger, self.routes, self.incarnation = ledger, routes, incarnation
        self.no_engine_since: float | None = None
        self.refusals: Counter[str] = Counter()  # by reason,
        self.seconds: Counter[str] = Counter()  # and how long each kept this worker from beginning an entry
        self.stopped = ""  # why the run does not go on, as was said last

    async def reserve(self) -> tuple[Reservation, str] | Refused:
        """An entry and the engine to begin it on; else the refusal of the last engine that was tried."""
        answer = Refused("ENGINE")
        entry = uuid.uuid4().hex  # ours, so that a repeated call is answered by the first one's reservation
        for engine in self.routes.order(entry):
            answer = await self.ledger(self.ledger.coordinator.reserve, self.incarnation, engine, entry)
            if isinstance(answer, Reservation):
                self.no_engine_since, self.stopped = None, ""
                return answer, engine
            if answer.reason not in OF_ONE_ENGINE:
                break
        self.refusals[answer.reason] += 1
        return answer

    async def why(self, refused: Refused) -> str:
        """What a refused worker waits for. Raises NoEngine when that has lasted for longer than one takes to start."""
        if refused.reason == "ENGINE":
            await self.routes.refresh()
            self.no_engine_since = self.no_engine_since or time.monotonic()
            if time.monotonic() - self.no_engine_since > self.routes.patience_s:
                raise NoEngine(f"{self.routes.waiting()}; start one, or look at its log, then start this worker again")
            return self.routes.waiting()
        self.no_engine_since = None
        if refused.reason == "PAUSED":
            fields = await self.ledger(self.ledger.coordinator.fields)
            why = fields.get("stopped") or fields.get("paused") or "this worker is drained"
            if why != self.stopped:
                log.warning("the run does not go on: %s", why)
            self.stopped = why
            return f"the run to go on: {why}"
        return WAITS.get(refused.reason, refused.reason)
