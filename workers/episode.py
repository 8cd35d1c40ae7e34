"""One episode: an environment, an engine and a chat make one trajectory.

    reset ─▶ prompt ids ─▶ generate ─▶ step ─▶ delta ids ─▶ generate ─▶ step ─▶ … ─▶ done
    tokens     0 0 0 0      1 1 1 1             0 0 0 0      1 1 1 1                  loss_mask

How it ends, as finish_reason: `stop` the environment is done · `length` so it is, after a reply cut at max_tokens ·
`turns` max_turns are used up · `context` no room is left. In the last two the reward is the last one that the
environment gave, else 0. Anything else is a failure (EpisodeFailed, EngineError): no reward, the entry is given back.
A tool has its own deadline inside its sandbox, and tells the model when that is over.
"""

import asyncio
import json
import logging
import math
import traceback
import zlib
from collections import Counter
from typing import Protocol

import numpy as np

from pipeline import config
from pipeline.errors import HeadraceError
from pipeline.ledger_types import Reservation
from pipeline.trajectory import Segment, Trajectory
from workers.chat import Chat
from workers.engine import Reply
from workers.environments import Environment, Turn

log = logging.getLogger(__name__)

CLOSE_S = 5.0


class EpisodeFailed(HeadraceError):
    """No trajectory came of it. code: SETUP_TIMEOUT | EPISODE_TIMEOUT | ENVIRONMENT | PROMPT_TOO_LONG."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class Generator(Protocol):
    """An engine, or the script that stands in for one when the cold start's traces are made."""

    name: str

    async def generate(self, tokens: list[int], max_tokens: int, at_least: int = 0) -> Reply: ...


async def play(
    reservation: Reservation, environment: Environment, engine: Generator, chat: Chat, settings: config.Config
) -> Trajectory:
    """Play the reserved prompt to its end; the environment is closed, however it ends.

    Raises EpisodeFailed, EngineError.
    """
    limit = settings.environment.episode_timeout_s
    try:
        async with asyncio.timeout(limit):
            return await Episode(reservation, environment, engine, chat, settings).run()
    except TimeoutError:
        raise EpisodeFailed(
            "EPISODE_TIMEOUT", f"prompt {reservation.prompt}: not done within environment.episode_timeout_s = {limit}"
        ) from None
    finally:
        await _close(environment)


class Episode:
    def __init__(
        self,
        reservation: Reservation,
        environment: Environment,
        engine: Generator,
        chat: Chat,
        settings: config.Config,
    ):
        self.reservation, self.environment, self.engine, self.chat = reservation, environment, engine, chat
        self.limits, self.rollout = settings.environment, settings.rollout
        self.tokens: list[int] = []
        self.segments: list[Segment] = []
        self.logprobs: list[tuple[int, np.ndarray]] = []  # where each reply begins, and its log-probs
        self.metrics: Counter[str] = Counter()
        self.reward: float | None = None
        self.outcome: float | None = None

    async def run(self) -> Trajectory:
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
            turn = await self._environment("step", self.environment.step(self.chat.text(reply.tokens)))
            self._score(turn)
            if turn.done:
                return self._trajectory("length" if reply.finish_reason == "length" else "stop")
            if self.metrics["turns"] >= self.limits.max_turns:
                return self._trajectory("turns")
            # A reply that was cut gets the end token that it lacks; it was not sampled, so it is no action.
            end = [] if reply.tokens[-1] == self.chat.end_token else [self.chat.end_token]
            observation = end + self.chat.extend(turn.messages)
            if len(self.tokens) + len(observation) >= self.rollout.context_length:
                return self._trajectory("context")
            self.tokens += observation

    async def _reset(self) -> Turn:
        problem = json.loads(self.reservation.payload)
        seed = zlib.crc32(self.reservation.entry.encode())
        limit = self.limits.setup_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await self._environment("reset", self.environment.reset(problem, seed))
        except TimeoutError:
            raise EpisodeFailed(
                "SETUP_TIMEOUT",
                f"prompt {self.reservation.prompt}: reset took over environment.setup_timeout_s = {limit}",
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
        self.segments += [Segment(start + at, n, self.engine.name, version) for at, n, version in reply.segments]
        self.metrics["turns"] += 1
        return reply

    async def _environment(self, what: str, call) -> Turn:
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
