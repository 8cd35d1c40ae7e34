"""A rollout worker: many entries at once, each from Reserve to Occupy.

    Reserve ─▶ RESERVED ─▶ group of episodes ─▶ [Trajectory] ─▶ Occupy ─▶ Placed │ Surplus │ Filtered
       │ FULL NO_PROMPT PAUSED MEMORY STALE ENGINE  └─ failure ─▶ Release        beside it, a task each:
       └─ wait for the bell, a second at most                                    bell · renewal · report · eval

The ledger's commands (cancel, truncate, drain) come with each renewal, and the bell makes one at once.
SIGTERM, or a drain in the ledger: no new entry; what is in flight has rollout.grace_s to finish, the rest is given
back. Redis that stays away, or no engine for longer than one takes to start: one message and the end; nothing is lost.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

import aiohttp

from pipeline import config
from pipeline.coordinator import Coordinator
from pipeline.errors import HeadraceError
from pipeline.events import Event
from pipeline.ledger_types import Placed, Refused, Reservation
from pipeline.progress import Progress
from workers.admission import Admission
from workers.chat import Chat
from workers.engine import sampling
from workers.environments import Environment
from workers.eval_host import EvalHost
from workers.group import Group, Shared
from workers.ledger import Bell, Ledger, LedgerGone
from workers.routing import NoEngine, Routes

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 1.0
REPORT_S = 0.5
RATE_REPORTS = 10  # tokens a second are those between so many of them
COMMANDS = {"truncate", "released", "drain"}  # events after which a renewal may bring one


class Entry(NamedTuple):
    """One that this worker plays."""

    task: asyncio.Task
    group: Group


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
        self.incarnation = f"{name}-{uuid.uuid4().hex[:8]}"
        self.ledger = Ledger(coordinator)
        self.wake = asyncio.Event()  # something happened that admission may have waited for
        self.renew_now = asyncio.Event()
        self.bell = Bell(self.ledger, self.wake, self._hear)
        self.routes = Routes(settings, self.ledger, http, sampling(settings.rollout, chat.end_token))
        self.admission = Admission(self.ledger, self.routes, self.incarnation)
        self.progress = Progress(coordinator.client, coordinator.run, name, "worker")
        self.evaluations = EvalHost(settings, self.ledger, self.incarnation, chat, make_environment, self.routes)
        self.counts = Counter(episodes=0, failures=0, action_tokens=0)
        self.shared = Shared(settings, chat, make_environment, self.routes, self.counts)
        self.entries: dict[str, Entry] = {}
        self.draining = False
        self.ended = asyncio.Event()  # nothing is in flight any more
        self.tasks = asyncio.TaskGroup()
        self.waiting = self.refused = ""  # what a refused Reserve waits for, and its reason

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
            self.waiting, begun = await self._fill(), time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self.wake.wait()
            self.admission.seconds[self.refused] += time.monotonic() - begun

    async def _fill(self) -> str:
        """Reserve until there are enough episodes (""), or the ledger refuses (what is waited for)."""
        self.refused = ""
        while self.in_flight + self.shared.launch <= self.settings.rollout.concurrency and not self.draining:
            answer = await self.admission.reserve()
            if isinstance(answer, Refused):
                self.refused = answer.reason
                return f"{await self.admission.why(answer)} ({self.in_flight} in flight here)"
            self._begin(*answer)
        return ""

    @property
    def in_flight(self) -> int:
        """Episodes."""
        return len(self.entries) * self.shared.launch

    # -- one entry

    def _begin(self, reservation: Reservation, engine: str) -> None:
        group = Group(self.shared, reservation, engine)
        task = self.tasks.create_task(self._entry(reservation, group))
        self.entries[reservation.entry] = Entry(task, group)

        def ended(_: asyncio.Task) -> None:  # also of a task that was cancelled before its first step
            del self.entries[reservation.entry]
            if not self.waiting:  # what a refused worker waits for is the bell's to tell
                self.wake.set()

        task.add_done_callback(ended)

    async def _entry(self, reservation: Reservation, group: Group) -> None:
        """From a reservation to its place, or back; whatever happens in it concerns this entry only."""
        entry = reservation.entry
        ids = {"entry": entry, "prompt": reservation.prompt, "worker": self.incarnation}
        try:
            trajectories = await group.play()
            answer = await self.ledger(self.coordinator.occupy, entry, trajectories)
            if answer == Refused("OLD"):  # begun under weights older than the entry's; the ledger keeps it RESERVED
                await self._release(entry, "lost")
            self.counts[type(answer).__name__.lower()] += 1  # entries: placed, surplus, filtered, refused
            if isinstance(answer, Placed):
                self.counts["episodes"] += len(trajectories)
            self.counts["action_tokens"] += sum(t.action_tokens for t in trajectories)
            self.counts["tool_calls"] += sum(int(t.metrics["tool_calls"]) for t in trajectories)
        except NoEngine as error:
            log.warning("given back: %s", error, extra=ids)
            await self._release(entry, "lost", error)  # no fault of the prompt's
        except LedgerGone:
            raise
        except HeadraceError as error:
            log.info("given back: %s", error, extra=ids)
            await self._release(entry, "retry" if group.truncated else "failed", error)
        except Exception as error:
            log.exception("given back: not foreseen", extra=ids)
            await self._release(entry, "failed", f"{type(error).__name__}: {error}")

    async def _release(self, entry: str, reason: str, why: object = "") -> None:
        await self.ledger(self.coordinator.release, entry, reason, str(why))

    # -- beside it

    async def _hear(self, found: list[Event]) -> None:
        """Of all that happened: engines, and what the ledger wants of this worker."""
        if any(event.kind == "engine" for event in found):
            await self.routes.refresh()
        mine = [event for event in found if event.kind in COMMANDS and event.fields["worker"] == self.incarnation]
        if any(event.kind == "drain" or event.fields["entry"] in self.entries for event in mine):
            self.renew_now.set()

    async def _renew(self) -> None:
        """Prolong the lease, and do what the ledger says: cancel entries, truncate, drain."""
        while True:
            with contextlib.suppress(TimeoutError):
                # not wait_for: it may take a cancellation for its own, up to Python 3.11
                async with asyncio.timeout(self.settings.buffers.lease_s / 3):
                    await self.renew_now.wait()
            self.renew_now.clear()
            commands = await self.ledger(self.coordinator.renew, self.incarnation, list(self.entries))
            for entry in filter(self.entries.get, commands.cancelled):
                self.entries[entry].task.cancel()
            for entry in filter(self.entries.get, commands.truncate):
                self.tasks.create_task(self.entries[entry].group.truncate())
            if commands.drain:
                self.drain()
            await self.routes.refresh()  # the events are a bell, not the record

    async def _report(self) -> None:
        """Say what this worker does and waits for, until it has ended."""
        counted = deque([(time.monotonic(), 0)], RATE_REPORTS)  # entries finish in bursts
        rate = 0
        while not self.ended.is_set():
            version = self.evaluations.version  # being evaluated: then this worker is busy, whatever else it waits for
            numbers = {"in_flight": self.in_flight, "tokens_s": rate, **self.counts}
            numbers |= {"evaluating": "" if version is None else version, "without_engine": self.routes.waiters}
            await self.ledger(self.progress.waiting, self._waiting() if version is None else "", **numbers)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_S):
                    await self.ended.wait()
            counted.append((time.monotonic(), self.counts["action_tokens"]))
            (begun, before), (now, tokens) = counted[0], counted[-1]
            rate = round((tokens - before) / (now - begun))
        await self.ledger(self.progress.done)

    def _waiting(self) -> str:
        if (waiters := self.routes.waiters) and waiters == self.in_flight:
            return f"an engine to go on with: {self.routes.waiting()} ({waiters} in flight here)"
        return self.waiting

    # -- the end

    async def _finish(self) -> None:
        """Let the episodes in flight finish within rollout.grace_s; give back the others, and an evaluation."""
        log.info("draining: %d entries in flight", len(self.entries), extra={"worker": self.incarnation})
        await self.evaluations.give_back()
        if self.entries:
            self.waiting = f"its last {len(self.entries)} entries, for {self.settings.rollout.grace_s:g} s at most"
            await asyncio.wait([entry.task for entry in self.entries.values()], timeout=self.settings.rollout.grace_s)
        rest = {name: entry.task for name, entry in self.entries.items()}
        for task in rest.values():
            task.cancel()
        await asyncio.gather(*rest.values(), return_exceptions=True)
        for entry in rest:
            await self._release(entry, "cancelled")
        log.info("drained: %d given back", len(rest), extra={"worker": self.incarnation, **self.counts})
