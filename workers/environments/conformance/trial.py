"""Episodes of an environment under trial, and what there is to see of each.

make() ─▶ reset(problem, seed) ─▶ step(reply) … ─▶ close()
Episode    turns, or the error; seconds a call; seconds in which nothing else could run
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pipeline import config
from workers.chat import Chat
from workers.environments import Environment, Turn
from workers.environments.conformance.replies import JUNK, KINDS, Kind
from workers.episode import CLOSE_S

SEEDS = (0, 1, 2**32 - 1)
ROUNDS = 3  # of each kind of reply


@dataclass
class Episode:
    problem: dict[str, Any]
    replies: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    error: str = ""  # what reset or step raised, or gave back in place of a Turn
    seconds: list[float] = field(default_factory=list)
    blocked: float = 0.0
    close_error: str = ""


class Trial:
    def __init__(
        self,
        settings: config.Environment,
        make: Callable[[], Environment],
        problems: list[dict[str, Any]],
        chat: Chat | None,
    ):
        self.settings, self.make, self.problems, self.chat = settings, make, problems, chat
        self._episodes: list[Episode] = []

    async def episodes(self) -> list[Episode]:
        """One for each kind of reply to begin with, for each junk there is, and for each problem's demonstration."""
        if not self._episodes:
            draw = random.Random(1)
            for number, kind in enumerate([*KINDS * ROUNDS, *[KINDS[0]] * len(self.problems)]):
                problem = self.problems[number % len(self.problems)]
                kinds = [kind] * 2 + draw.choices(KINDS, k=self.settings.max_turns)
                self._episodes.append(await self.play(problem, SEEDS[number % 3], kinds, draw))
            for text in JUNK:
                self._episodes.append(await self.play(self.problems[0], 0, [lambda *_, text=text: text], draw))
        return self._episodes

    async def play(self, problem: dict[str, Any], seed: int, kinds: list[Kind], draw: random.Random) -> Episode:
        """Until it is done, max_turns are used up, there are no more kinds, or it raises."""
        played, environment = Episode(problem), self.make()
        heart = asyncio.create_task(_beat(played))
        try:
            await self._call(
                played, f"reset({json.dumps(problem)[:80]}, {seed})", environment.reset(copy(problem), seed)
            )
            for kind in kinds[: self.settings.max_turns]:
                if played.error or played.turns[-1].done:
                    break
                reply = kind(environment, problem, draw)
                played.replies.append(reply)
                await self._call(played, f"step({reply!r:.80})", environment.step(reply))
        finally:
            heart.cancel()
            try:
                await close(environment)
            except Exception as error:
                played.close_error = f"after {len(played.turns)} turns it raised {type(error).__name__}: {error}"
        return played

    async def _call(self, played: Episode, what: str, call: Awaitable[Turn]) -> None:
        begun = time.monotonic()
        try:
            turn = await call
        except Exception as error:
            played.error = f"{what} raised {type(error).__name__}: {error}"
            return
        played.seconds.append(time.monotonic() - begun)
        await asyncio.sleep(0.001)  # _beat sees how long it could not run
        if isinstance(turn, Turn):
            played.turns.append(turn)
        else:
            played.error = f"{what} gave {turn!r:.80}, where a Turn is expected"


async def _beat(played: Episode) -> None:
    """Notice when nothing else can run."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.01)
        played.blocked += max(0.0, time.monotonic() - before - 0.02)


async def close(environment: Environment) -> None:
    async with asyncio.timeout(CLOSE_S):
        await environment.close()


def copy(problem: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(problem))  # as it reaches an environment, through the ledger
