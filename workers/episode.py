"""One episode: an environment, an engine and a chat make one trajectory.

    reset ─▶ prompt ids ─▶ generate ─▶ step ─▶ delta ids ─▶ generate ─▶ step ─▶ … ─▶ done
    tokens     0 0 0 0      1 1 1 1             0 0 0 0      1 1 1 1                  loss_mask

How it ends, as finish_reason:

    the environment is done  stop           after a reply that ended by itself
                             stop_string    … that ended at one of rollout.stop; its tokens stay as they were sampled
                             length         … that was cut at rollout.max_tokens
    done or not              empty          after a reply without a word
                             context        … that was cut because it filled rollout.context_length
    not done                 turns          environment.max_turns are used up
                             tool_context   what the environment answered has no room in rollout.context_length
                             truncated      the ledger wanted no more of it (`truncate`)

Without a done environment the reward is the last one that it gave, else 0. Anything else is a failure (EpisodeFailed,
EngineError) and no reward: the member is played again, or the entry given back. A tool has its own deadline inside its
sandbox, and tells the model when that is over.
"""

import asyncio
import contextlib
import json
import logging
import time
import traceback
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Protocol

from pipeline import config, game_folders
from pipeline.errors import Coded
from pipeline.ledger_types import Reservation
from pipeline.trajectory import Trajectory
from workers import seeds
from workers.chat import Chat
from workers.engine import Reply
from workers.environments import Environment, Turn
from workers.time_limit import TimeLimit
from workers.transcript import Transcript

log = logging.getLogger(__name__)

CLOSE_S = 5.0


class EpisodeFailed(Coded):
    """No trajectory came of it. code: SETUP_TIMEOUT | STEP_TIMEOUT | EPISODE_TIMEOUT | ENVIRONMENT | PROMPT_TOO_LONG |
    TRUNCATED (before the first token)."""


class Generator(Protocol):
    """Engines, one after the other (Continuation), or the script that stands in for them in the cold start's traces."""

    async def generate(self, tokens: list[int], max_tokens: int, at_least: int = 0, seed: int = 0) -> Reply: ...


async def play(
    reservation: Reservation, environment: Environment, engine: Generator, chat: Chat, settings: config.Config
) -> Trajectory:
    """Play the reserved prompt to its end; the environment is closed, however it ends.

    Raises EpisodeFailed, EngineError.
    """
    time_limit = TimeLimit(settings.environment.episode_timeout_s)
    seed = seeds.of_replies(settings.run.seed, reservation)
    return await Episode(reservation, environment, engine, chat, settings, time_limit, seed).play()


class Episode:
    """time_limit: of environment.episode_timeout_s; seed: of its replies."""

    def __init__(
        self,
        reservation: Reservation,
        environment: Environment,
        engine: Generator,
        chat: Chat,
        settings: config.Config,
        time_limit: TimeLimit,
        seed: int,
    ):
        self.reservation, self.environment, self.engine, self.chat = reservation, environment, engine, chat
        self.limits, self.rollout, self.time_limit = settings.environment, settings.rollout, time_limit
        self.folder, self.seed = settings.data.path, seed
        self.environment_seed = seeds.of_environment(settings.run.seed, reservation)
        self.transcript = Transcript()
        self.seconds = Counter(generate=0.0, environment=0.0)
        self._truncated = False
        self._task: asyncio.Task | None = None

    async def play(self) -> Trajectory:
        """As the function `play`; once."""
        self._task = asyncio.current_task()
        try:
            async with self.time_limit:
                finish_reason = await self._until_truncated()
        except TimeoutError:
            limit = self.limits.episode_timeout_s
            raise EpisodeFailed(
                "EPISODE_TIMEOUT",
                f"prompt {self.reservation.prompt}: not done within environment.episode_timeout_s = {limit}",
            ) from None
        finally:
            await _close(self.environment)
        if finish_reason == "truncated":
            if not self.transcript.segments:  # no action: nothing could be trained
                raise EpisodeFailed("TRUNCATED", f"prompt {self.reservation.prompt}: stopped before its first token")
            self.transcript.metrics["truncated"] = 1
        return self.transcript.trajectory(self.reservation, finish_reason)

    def truncate(self, generating: bool) -> None:
        """End it now, with what there is. generating: a reply is on its way that will be `truncated`."""
        self._truncated = True
        if not generating and self._task:
            self._task.cancel()

    async def _until_truncated(self) -> str:
        try:
            return await self._turns()
        except asyncio.CancelledError:
            if not self._truncated:
                raise
            self._task.uncancel()
            return "truncated"

    async def _turns(self) -> str:
        """The finish reason."""
        turn, transcript = await self._reset(), self.transcript
        transcript.tokens += self.chat.prompt(turn.messages, self.environment.tools)
        if len(transcript.tokens) >= self.rollout.context_length:
            raise EpisodeFailed(
                "PROMPT_TOO_LONG",
                f"prompt {self.reservation.prompt} has {len(transcript.tokens)} tokens, rollout.context_length = "
                f"{self.rollout.context_length} leaves no room for a reply: raise it, or leave such prompts out",
            )
        while True:
            reply = await self._reply()
            if self._truncated:
                return "truncated"
            turn = await self._step(self.chat.text(reply.tokens))
            ending = self._ending(reply)
            if turn.done or ending in ("empty", "context"):
                return ending
            if transcript.metrics["turns"] >= self.limits.max_turns:
                return "turns"
            # A reply that was cut gets the end token that it lacks; it was not sampled, so it is no action.
            end = [] if reply.tokens[-1] == self.chat.end_token else [self.chat.end_token]
            observation = end + self.chat.extend(turn.messages)
            if len(transcript.tokens) + len(observation) >= self.rollout.context_length:
                return "tool_context"
            transcript.tokens += observation

    async def _reset(self) -> Turn:
        problem = game_folders.located(json.loads(self.reservation.payload), self.folder)
        return await self._within("setup", "reset", self.environment.reset(problem, self.environment_seed))

    async def _step(self, text: str) -> Turn:
        turn = await self._within("step", "step", self.environment.step(text))
        try:
            self.transcript.judge(turn)
        except ValueError as error:
            raise EpisodeFailed("ENVIRONMENT", f"{type(self.environment).__name__}.step: {error}") from None
        return turn

    async def _within(self, limit: str, what: str, call: Coroutine) -> Turn:
        """Await the environment, for environment.{limit}_timeout_s at most."""
        seconds = getattr(self.limits, f"{limit}_timeout_s")
        try:
            with self._timed("environment"):
                async with asyncio.timeout(seconds):
                    return await self._environment(what, call)
        except TimeoutError:
            raise EpisodeFailed(
                f"{limit.upper()}_TIMEOUT",
                f"prompt {self.reservation.prompt}: {what} took over environment.{limit}_timeout_s = {seconds}",
            ) from None

    async def _reply(self) -> Reply:
        tokens = self.transcript.tokens
        room = self.rollout.context_length - len(tokens)
        # A copy: what was sent must not change when it is sent again.
        with self._timed("generate"):
            reply = await self.engine.generate(
                tokens[:], min(self.rollout.max_tokens, room), at_least=self.reservation.version, seed=self.seed
            )
        self.transcript.add(reply)
        return reply

    @contextlib.contextmanager
    def _timed(self, doing: str) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[doing] += time.monotonic() - begun

    def _ending(self, reply: Reply) -> str:
        if reply.tokens == [self.chat.end_token]:
            return "empty"
        full = len(self.transcript.tokens) >= self.rollout.context_length
        return "context" if full and reply.finish_reason == "length" else reply.finish_reason

    async def _environment(self, what: str, call: Coroutine) -> Turn:
        """Await the environment; what it raises, or gives back in place of a Turn, is its failure."""
        try:
            turn = await call
        except Exception as error:
            tail = "".join(traceback.format_exception(error)[-3:])
            raise EpisodeFailed(
                "ENVIRONMENT",
                f"{type(self.environment).__name__}.{what} raised {type(error).__name__}: {error}\n{tail.rstrip()}",
            ) from error
        if not isinstance(turn, Turn):
            raise EpisodeFailed(
                "ENVIRONMENT", f"{type(self.environment).__name__}.{what}: expected a Turn, found {turn!r:.200}"
            )
        return turn


async def _close(environment: Environment) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await environment.close()
    except Exception as error:  # the trajectory is made already: its environment's end is worth a line, not a failure
        log.warning("%s.close: %s: %s", type(environment).__name__, type(error).__name__, error)
