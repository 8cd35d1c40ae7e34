"""A rollout worker: many episodes at once, each from Reserve to Occupy.

    Reserve ─▶ RESERVED ─▶ play (environment, engine) ─▶ Trajectory ─▶ Occupy ─▶ Placed
       │ FULL NO_PROMPT PAUSED MEMORY STALE ENGINE       └─ failure ─▶ Release      beside it, a task each:
       └─ wait for the bell, a second at most                                       bell · renewal · report · eval

SIGTERM, or a drain in the ledger: no new entry; what is in flight has rollout.grace_s to finish, the rest is given
back. Redis that stays away, or no engine for longer than one takes to start: one message and the end; nothing is lost.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable

import aiohttp

from pipeline import config
from pipeline.coordinator import Coordinator, Refused, Reservation
from pipeline.errors import HeadraceError
from pipeline.progress import Progress
from workers.admission import Admission
from workers.chat import Chat
from workers.engine import Engine, EngineGone, WrongWeights, sampling
from workers.environments import Environment
from workers.episode import play
from workers.eval_host import EvalHost
from workers.ledger import Bell, Ledger, LedgerGone
from workers.routing import Routes

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 1.0
REPORT_S = 0.5
FAILURES_SHOWN = 20  # whole messages in the log; a broken environment fails thousands of times


class Worker:
    """One worker incarnation. `run` returns when it is drained; `drain` is what SIGTERM calls."""

    def __init__(
        self,
        settings: config.Config,
        coordinator: Coordinator,
        name: str,
        chat: Chat,
        make_environment: Callable[[], Environment],
        http: aiohttp.ClientSession,
    ):
        self.settings, self.coordinator = settings, coordinator
        self.chat, self.make_environment = chat, make_environment
        self.incarnation = f"{name}-{uuid.uuid4().hex[:8]}"
        self.ledger = Ledger(coordinator)
        self.wake = asyncio.Event()  # something happened that admission may have waited for
        self.bell = Bell(self.ledger, self.wake)
        parameters = sampling(settings.rollout, chat.end_token)
        self.routes = Routes(self.ledger, http, parameters, settings.rollout.request_timeout_s)
        self.admission = Admission(settings.engines, self.ledger, self.routes, self.incarnation)
        self.progress = Progress(coordinator.client, coordinator.run, name, "worker")
        self.evaluations = EvalHost(settings, self.ledger, self.incarnation, chat, make_environment, self.routes)
        self.episodes: dict[str, asyncio.Task] = {}  # by entry
        self.draining = False
        self.ended = asyncio.Event()  # nothing is in flight any more
        self.tasks = asyncio.TaskGroup()
        self.waiting = ""  # what a refused Reserve waits for
        self.counts = Counter(episodes=0, failures=0, action_tokens=0)

    def drain(self) -> None:
        """Take no new entry and finish."""
        self.draining = True
        self.ledger.patience_s = min(self.ledger.patience_s, self.settings.rollout.grace_s)
        self.wake.set()

    async def run(self) -> None:
        """Until drained. Raises HeadraceError for what this worker cannot go on with."""
        await self._join()
        beside = (self.bell.listen(), self._renew(), self.evaluations.host())
        try:
            async with self.tasks:
                self.tasks.create_task(self._report())
                background = [self.tasks.create_task(work) for work in beside]
                await self._admit()
                await self._finish()
                self.ended.set()
                for task in background:
                    task.cancel()
        except* HeadraceError as group:
            raise group.exceptions[0] from None

    async def _join(self) -> None:
        """Wait for the run to be in the ledger. Raises OtherSettings unless it was made with our settings."""
        limits = self.settings.engines.start_timeout_s, lambda: self.draining, self.progress.waiting
        if await self.ledger(self.coordinator.wait_for_run, self.settings.digest, *limits):
            await self.routes.refresh()

    # -- new entries

    async def _admit(self) -> None:
        """Keep rollout.concurrency episodes going until drained."""
        while not self.draining:
            self.wake.clear()
            self.waiting = await self._fill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), LOOK_AGAIN_S)

    async def _fill(self) -> str:
        """Reserve until there are enough episodes (""), or the ledger refuses (what is waited for)."""
        while len(self.episodes) < self.settings.rollout.concurrency and not self.draining:
            if self.bell.engines_changed.is_set() or not self.routes.ready:
                self.bell.engines_changed.clear()
                await self.routes.refresh()
            answer = await self.admission.reserve()
            if isinstance(answer, Refused):
                return f"{await self.admission.why(answer)} ({len(self.episodes)} in flight here)"
            self._begin(*answer)
        return ""

    # -- one entry

    def _begin(self, reservation: Reservation, engine: Engine) -> None:
        task = self.tasks.create_task(self._episode(reservation, engine))
        self.episodes[reservation.entry] = task
        self.routes.in_flight[engine.name] += 1

        def ended(_: asyncio.Task) -> None:  # also of a task that was cancelled before its first step
            del self.episodes[reservation.entry]
            self.routes.in_flight[engine.name] -= 1
            if not self.waiting:  # what a refused worker waits for is the bell's to tell
                self.wake.set()

        task.add_done_callback(ended)

    async def _episode(self, reservation: Reservation, engine: Engine) -> None:
        """From a reservation to its place, or back; whatever happens in it concerns this entry only."""
        try:
            trajectory = await play(reservation, self.make_environment(), engine, self.chat, self.settings)
            answer = await self.ledger(self.coordinator.occupy, reservation.entry, [trajectory])
            if answer == Refused("OLD"):  # begun under weights older than the entry's; the ledger keeps it RESERVED
                await self.ledger(self.coordinator.release, reservation.entry, "lost")
            self.counts["episodes"] += 1
            self.counts[type(answer).__name__.lower()] += 1  # placed, surplus, refused
            self.counts["action_tokens"] += trajectory.action_tokens
        except (EngineGone, WrongWeights) as error:
            await self.routes.mark(engine.name, str(error))
            await self._release(reservation, "lost", error)  # no fault of the prompt's
        except LedgerGone:
            raise
        except HeadraceError as error:
            await self._release(reservation, "failed", error)
        except Exception as error:
            log.exception("entry %s: not foreseen", reservation.entry)
            await self._release(reservation, "failed", error)

    async def _release(self, reservation: Reservation, reason: str, error: Exception) -> None:
        self.counts["failures"] += 1
        if self.counts["failures"] <= FAILURES_SHOWN:
            log.warning("entry %s of prompt %s: %s", reservation.entry, reservation.prompt, error)
        await self.ledger(self.coordinator.release, reservation.entry, reason)

    # -- beside it

    async def _renew(self) -> None:
        """Prolong the lease, and do what the ledger says: cancel entries, drain."""
        while True:
            await asyncio.sleep(self.settings.buffers.lease_s / 3)
            commands = await self.ledger(self.coordinator.renew, self.incarnation, list(self.episodes))
            for entry in commands.cancelled:
                if task := self.episodes.get(entry):
                    task.cancel()
            if commands.drain:
                self.drain()

    async def _report(self) -> None:
        """Say what this worker does and waits for, until it has ended."""
        begun, tokens, rate = time.monotonic(), 0, 0
        while not self.ended.is_set():
            version = self.evaluations.version  # being evaluated: then this worker is busy, whatever else it waits for
            numbers = {"in_flight": len(self.episodes), "tokens_s": rate, **self.counts}
            numbers["evaluating"] = "" if version is None else version
            await self.ledger(self.progress.waiting, self.waiting if version is None else "", **numbers)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), REPORT_S)
            now = time.monotonic()
            rate = round((self.counts["action_tokens"] - tokens) / (now - begun))
            begun, tokens = now, self.counts["action_tokens"]
        await self.ledger(self.progress.done)

    # -- the end

    async def _finish(self) -> None:
        """Let the episodes in flight finish within rollout.grace_s; give back the others, and an evaluation."""
        log.info("draining: %d episodes in flight", len(self.episodes))
        await self.evaluations.give_back()
        if self.episodes:
            await asyncio.wait(list(self.episodes.values()), timeout=self.settings.rollout.grace_s)
        rest = dict(self.episodes)
        for task in rest.values():
            task.cancel()
        await asyncio.gather(*rest.values(), return_exceptions=True)
        for entry in rest:
            await self.ledger(self.coordinator.release, entry, "cancelled")
        log.info("drained: %d given back", len(rest))
