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
from collections.abc import Callable

import aiohttp

from pipeline import config
from pipeline.coordinator import Coordinator, Refused, Reservation
from pipeline.errors import HeadraceError, OtherSettings, UnknownRun
from pipeline.progress import Progress
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
WAITS = {
    "FULL": "a place in the buffers: all are taken by finished trajectories or those in flight",
    "STALE": "a newer version in an engine: what they serve now could not be trained in time",
    "MEMORY": "memory: buffers.byte_budget is reached until the trainer's next checkpoint",
    "NO_PROMPT": "an idle prompt: all are in flight or quarantined",
}


class NoEngine(HeadraceError):
    """No engine has been ready for longer than one takes to start and load."""

    code = "NO_ENGINE"


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
        self.settings, self.coordinator, self.chat, self.make_environment = (
            settings,
            coordinator,
            chat,
            make_environment,
        )
        self.incarnation = f"{name}-{uuid.uuid4().hex[:8]}"
        self.ledger = Ledger(coordinator)
        self.wake = asyncio.Event()  # something happened that admission may have waited for
        self.bell = Bell(self.ledger, self.wake)
        parameters = sampling(settings.rollout, chat.end_token)
        self.routes = Routes(self.ledger, http, parameters, settings.rollout.request_timeout_s)
        self.progress = Progress(coordinator.client, coordinator.run, name, "worker")
        self.evaluations = EvalHost(settings, self.ledger, self.incarnation, chat, make_environment, self.routes)
        self.episodes: dict[str, asyncio.Task] = {}  # by entry
        self.draining = False
        self.ended = asyncio.Event()  # nothing is in flight any more
        self.tasks = asyncio.TaskGroup()
        self.waiting = ""  # what a refused Reserve waits for
        self.counts = {"episodes": 0, "failures": 0, "action_tokens": 0}
        self.no_engine_since: float | None = None

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
        end = time.monotonic() + self.settings.engines.start_timeout_s
        while not self.draining:
            try:
                found = (await self.ledger(self.coordinator.fields))["digest"]
                break
            except UnknownRun:
                if time.monotonic() > end:
                    raise
                await self.ledger(self.progress.waiting, f"run {self.coordinator.run} to be created by the coordinator")
                await asyncio.sleep(REPORT_S)
        else:
            return
        if found != self.settings.digest:
            raise OtherSettings(
                f"run {self.coordinator.run!r} has settings {found}, this worker was given {self.settings.digest}: "
                "start it with the run's own run.toml"
            )
        await self.routes.refresh()

    # -- admission

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
            answer = await self._reserve()
            if not isinstance(answer, Reservation):
                return await self._why(answer)
        return ""

    async def _reserve(self) -> Reservation | Refused:
        """Try the ready engines, least loaded first; the last one's refusal is the answer."""
        answer: Reservation | Refused = Refused("ENGINE")
        for name in self.routes.order():
            engine = self.routes.engine(name)
            entry = uuid.uuid4().hex  # ours, so that a repeated call is answered by the first one's reservation
            answer = await self.ledger(self.coordinator.reserve, self.incarnation, name, entry)
            if isinstance(answer, Reservation):
                self.no_engine_since = None
                self._begin(answer, engine)
                break
            if answer.reason not in ("ENGINE", "STALE", "FULL"):  # the same for every engine
                break
        return answer

    async def _why(self, refused: Refused) -> str:
        """The refusal in words. Raises NoEngine, or what the run was stopped for."""
        if refused.reason != "ENGINE":
            self.no_engine_since = None
        if refused.reason == "ENGINE":
            await self.routes.refresh()
            self.no_engine_since = self.no_engine_since or time.monotonic()
            engines = self.settings.engines
            if time.monotonic() - self.no_engine_since > engines.start_timeout_s + engines.load_timeout_s:
                raise NoEngine(f"{self.routes.waiting()}; start one, or look at its log, then start this worker again")
            return self.routes.waiting()
        if refused.reason == "PAUSED":
            fields = await self.ledger(self.coordinator.fields)
            why = fields.get("stopped") or fields.get("paused") or "this worker is drained"
            if why not in self.waiting:
                log.warning("the run does not go on: %s", why)
            return f"the run to go on: {why}"
        return f"{WAITS.get(refused.reason, refused.reason)} ({len(self.episodes)} in flight here)"

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
            await self.ledger(self.coordinator.occupy, reservation.entry, [trajectory])
            self.counts["episodes"] += 1
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
