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
import json
import logging
import math
import traceback
import zlib
from collections import Counter
from collections.abc import Coroutine
from typing import Protocol

import numpy as np

from pipeline import config
from pipeline.errors import Coded
from pipeline.ledger_types import Reservation
from pipeline.trajectory import Segment, Trajectory
from workers.chat import Chat
from workers.engine import Reply
from workers.environments import Environment, Turn
from workers.time_limit import TimeLimit

log = logging.getLogger(__name__)

CLOSE_S = 5.0


class EpisodeFailed(Coded):
    """No trajectory came of it. code: SETUP_TIMEOUT | STEP_TIMEOUT | EPISODE_TIMEOUT | ENVIRONMENT | PROMPT_TOO_LONG |
    TRUNCATED (before the first token)."""


class Generator(Protocol):
    """Engines, one after the other (Continuation), or the script that stands in for them in the cold start's traces."""

    async def generate(self, tokens: list[int], max_tokens: int, at_least: int = 0) -> Reply: ...


async def play(
    reservation: Reservation, environment: Environment, engine: Generator, chat: Chat, settings: config.Config
) -> Trajectory:
    """Play the reserved prompt to its end; the environment is closed, however it ends.

    Raises EpisodeFailed, EngineError.
    """
    time_limit = TimeLimit(settings.environment.episode_timeout_s)
    return await Episode(reservation, environment, engine, chat, settings, time_limit).play()


class Episode:
    """time_limit: of environment.episode_timeout_s."""

    def __init__(
        self,
        reservation: Reservation,
        environment: Environment,
        engine: Generator,
        chat: Chat,
        settings: config.Config,
        time_limit: TimeLimit,
    ):
        self.reservation, self.environment, self.engine, self.chat = reservation, environment, engine, chat
        self.limits, self.rollout, self.time_limit = settings.environment, settings.rollout, time_limit
        self.tokens: list[int] = []
        self.segments: list[Segment] = []
        self.logprobs: list[tuple[int, np.ndarray]] = []  # where each reply begins, and its log-probs
        self.metrics: Counter[str] = Counter()
        self.reward: float | None = None
        self.outcome: float | None = None
        self._truncated = False
        self._task: asyncio.Task | None = None

    async def play(self) -> Trajectory:
        """As the function `play`; once."""
        self._task = asyncio.current_task()
        try:
            async with self.time_limit:
                return self._trajectory(await self._until_truncated())
        except TimeoutError:
            limit = self.limits.episode_timeout_s
            raise EpisodeFailed(
                "EPISODE_TIMEOUT",
                f"prompt {self.reservation.prompt}: not done within environment.episode_timeout_s = {limit}",
            ) from None
        finally:
            await _close(self.environment)

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
        turn = await self._reset()
        self.tokens = self.chat.prompt(turn.messages, self.environment.tools)
        if len(self.tokens) >= self.rollout.context_length:
            raise EpisodeFailed(
                "PROMPT_TOO_LONG",
                f"prompt {self.reservation.prompt} has {len(self.tokens)} tokens, rollout.context_length = "
                f"{self.rollout.context_length} leaves no room for a reply: raise it, or leave such prompts out",
            )
        while True:
            reply = await self._reply()
            if self._truncated:
                return "truncated"
            turn = await self._step(self.chat.text(reply.tokens))
            self._score(turn)
            ending = self._ending(reply)
            if turn.done or ending in ("empty", "context"):
                return ending
            if self.metrics["turns"] >= self.limits.max_turns:
                return "turns"
            # A reply that was cut gets the end token that it lacks; it was not sampled, so it is no action.
            end = [] if reply.tokens[-1] == self.chat.end_token else [self.chat.end_token]
            observation = end + self.chat.extend(turn.messages)
            if len(self.tokens) + len(observation) >= self.rollout.context_length:
                return "tool_context"
            self.tokens += observation

    async def _reset(self) -> Turn:
        problem = json.loads(self.reservation.payload)
        seed = zlib.crc32(self.reservation.entry.encode())
        return await self._within("setup", "reset", self.environment.reset(problem, seed))

    async def _step(self, text: str) -> Turn:
        return await self._within("step", "step", self.environment.step(text))

    async def _within(self, limit: str, what: str, call: Coroutine) -> Turn:
        """Await the environment, for environment.{limit}_timeout_s at most."""
        seconds = getattr(self.limits, f"{limit}_timeout_s")
        try:
            async with asyncio.timeout(seconds):
                return await self._environment(what, call)
        except TimeoutError:
            raise EpisodeFailed(
                f"{limit.upper()}_TIMEOUT",
                f"prompt {self.reservation.prompt}: {what} took over environment.{limit}_timeout_s = {seconds}",
            ) from None

    async def _reply(self) -> Reply:
        start = len(self.tokens)
        room = self.rollout.context_length - start
        # A copy: what was sent must not change when it is sent again.
        reply = await self.engine.generate(
            self.tokens[:], min(self.rollout.max_tokens, room), at_least=self.reservation.version
        )
        self.tokens += reply.tokens
        self.logprobs.append((start, reply.logprobs))
        self.segments += [segment._replace(start=start + segment.start) for segment in reply.segments]
        self.metrics["turns"] += 1
        return reply

    def _ending(self, reply: Reply) -> str:
        if reply.tokens == [self.chat.end_token]:
            return "empty"
        full = len(self.tokens) >= self.rollout.context_length
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

    def _score(self, turn: Turn) -> None:
        metrics = dict(turn.metrics)
        self.outcome = metrics.pop("outcome", self.outcome)
        self.metrics.update(metrics)
        self.reward = turn.reward if turn.reward is not None else self.reward
        kind = type(self.environment).__name__
        if turn.done and self.reward is None:
            raise EpisodeFailed("ENVIRONMENT", f"{kind}.step: done without a reward; give Turn(…, reward=…, done=True)")
        if self.reward is not None and not math.isfinite(self.reward):
            raise EpisodeFailed("ENVIRONMENT", f"{kind}.step: expected a finite reward, found {self.reward}")
        outcome = self.reward if self.outcome is None else self.outcome
        if outcome is not None and not 0 <= outcome <= 1:
            raise EpisodeFailed(
                "ENVIRONMENT",
                f"{kind}.step: expected an outcome in [0, 1], found {outcome}; a reward outside of it needs "
                'Turn(metrics={"outcome": …}) besides',
            )

    def _trajectory(self, finish_reason: str) -> Trajectory:
        if finish_reason == "truncated":
            self.metrics["truncated"] = 1
            if not self.segments:  # no action: nothing could be trained
                raise EpisodeFailed("TRUNCATED", f"prompt {self.reservation.prompt}: stopped before its first token")
        r, reward = self.reservation, 0.0 if self.reward is None else float(self.reward)
        loss_mask = np.zeros(len(self.tokens), dtype=np.uint8)
        rollout_logprobs = np.zeros(len(self.tokens), dtype=np.float32)
        for start, logprobs in self.logprobs:
            loss_mask[start : start + len(logprobs)] = 1
            rollout_logprobs[start : start + len(logprobs)] = logprobs
        return Trajectory(
            prompt_id=r.prompt,
            entry=r.entry,
            version=r.version,
            event=r.event,
            value=r.value,
            outcome=reward if self.outcome is None else float(self.outcome),
            reward=reward,
            finish_reason=finish_reason,
            metrics={"tool_calls": 0.0} | {name: float(number) for name, number in self.metrics.items()},
            tokens=np.array(self.tokens, dtype=np.int32),
            loss_mask=loss_mask,
            rollout_logprobs=rollout_logprobs,
            segments=self.segments,
        )


async def _close(environment: Environment) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await environment.close()
    except Exception as error:  # the trajectory is made already: its environment's end is worth a line, not a failure
        log.warning("%s.close: %s: %s", type(environment).__name__, type(error).__name__, error)
