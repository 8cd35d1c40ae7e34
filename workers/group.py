"""The members of one entry, side by side: N' begin, the first N that finish are handed in, the rest is stopped.

    member ─ play ────────────────▶ Trajectory 0 ┐
    member ─ play ─ failed ─ play ▶ Trajectory 1 ┴▶ [N trajectories]     a failure is played again alone,
    member ─ play ──────── cancelled, at the engine too                  RETRIES times; its siblings go on

N = group_size, N' = group_launch. Those handed in are numbered in the order in which they began. The engine that a
member is on may die or change its weights meanwhile: continuation.py.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter

from pipeline import config
from pipeline.errors import HeadraceError
from pipeline.ledger_types import Reservation
from pipeline.trajectory import Trajectory
from workers import seeds
from workers.chat import Chat
from workers.continuation import Continuation
from workers.engine import EngineError
from workers.environments import Environment
from workers.episode import Episode, EpisodeFailed
from workers.routing import Routes
from workers.time_limit import TimeLimit

log = logging.getLogger(__name__)

RETRIES = 2  # of one member
FIRST_PAUSE_S = 0.2
FAILURES_SHOWN = 20  # whole messages in the log; a broken environment fails thousands of times
AT_EVERY_ATTEMPT = {"PROMPT_TOO_LONG"}


class Shared:
    """What all groups of a worker share. counts: episodes that failed, by code; members that were stopped, …"""

    def __init__(
        self,
        settings: config.Config,
        chat: Chat,
        make_environment: Callable[[], Environment],
        routes: Routes,
        counts: Counter[str],
    ):
        self.settings, self.chat, self.make_environment = settings, chat, make_environment
        self.routes, self.counts = routes, counts
        self.seconds: Counter[str] = Counter()  # of episodes that have ended: generate, environment
        self.size = settings.buffers.group_size
        self.launch = settings.buffers.group_launch or self.size


class Group:
    """engine: the one that the entry was reserved on."""

    def __init__(self, shared: Shared, reservation: Reservation, engine: str):
        self.shared, self.reservation, self.engine = shared, reservation, engine
        self.truncated = False
        self._playing: set[tuple[Continuation, Episode]] = set()
        self._finished: list[tuple[int, Trajectory]] = []  # with the member's place among those that began

    async def play(self) -> list[Trajectory]:
        """The first group_size that finish. Raises the last failure when fewer than that can."""
        size = self.shared.size
        tasks = [asyncio.create_task(self._member(number)) for number in range(self.shared.launch)]
        running, failure = set(tasks), None
        try:
            while len(self._finished) < size:
                if len(self._finished) + len(running) < size:
                    raise failure
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for error in filter(None, (task.exception() for task in done)):
                    if not isinstance(error, HeadraceError):
                        raise error
                    failure = error
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.shared.counts["stopped"] += len(running)
        first = sorted(self._finished[:size], key=itemgetter(0))
        return [replace(t, member=number) for number, (_, t) in enumerate(first)]

    async def truncate(self) -> None:
        """All members that still play end now, with what they have."""
        self.truncated = True
        playing = list(self._playing)
        generating = await asyncio.gather(*(generator.truncate() for generator, _ in playing))
        for (_, episode), is_generating in zip(playing, generating, strict=True):
            episode.truncate(is_generating)

    async def _member(self, number: int) -> None:
        """Play one to its end, again if it fails. Raises EpisodeFailed, EngineError, NoEngine."""
        counts = self.shared.counts
        for attempt in range(1 + RETRIES):
            try:
                self._finished.append((number, await self._play(number, attempt)))
                return
            except (EpisodeFailed, EngineError) as error:
                counts["failures"] += 1
                counts[f"failed_{error.code.lower()}"] += 1
                if counts["failures"] <= FAILURES_SHOWN:
                    ids = {"entry": self.reservation.entry, "prompt": self.reservation.prompt, "attempt": attempt + 1}
                    log.warning("an episode failed: %s", error, extra=ids | {"code": error.code})
                if attempt == RETRIES or self.truncated or error.code in AT_EVERY_ATTEMPT:
                    raise
            await asyncio.sleep(FIRST_PAUSE_S * 2**attempt)

    async def _play(self, number: int, attempt: int) -> Trajectory:
        shared, r = self.shared, self.reservation
        seed = seeds.of_replies(shared.settings.run.seed, r, number, attempt)
        limit = TimeLimit(shared.settings.environment.episode_timeout_s)
        stops = shared.settings.rollout.stop
        with Continuation(r.entry, self.engine, shared.routes, shared.chat, stops, limit, shared.counts) as generator:
            episode = Episode(r, shared.make_environment(), generator, shared.chat, shared.settings, limit, seed)
            self._playing.add((generator, episode))
            try:
                return await episode.play()
            finally:
                self._playing.discard((generator, episode))
                shared.seconds.update(episode.seconds)
