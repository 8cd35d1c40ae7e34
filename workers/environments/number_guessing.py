"""A hidden number from 0 to 99, which the model has `environment.max_turns` turns to name.

    user       Guess my number from 0 to 99: game 48213
    assistant  50
    user       higher                                        or "lower"; "invalid" for what is no such number
    assistant  57                                            reward 1; reward 0 once the turns are used up

A failure takes all turns and a success fewer, so length and success go against each other: made for telling apart what
depends on that (arXiv 2608.24870, Eq. 5). The games are pipeline/number_guessing.py's; any problem whose answer is such
a number will do.

Options: `lost`, the share of scripted demonstrations that guess at random, whatever they hear, and mostly fail: a habit
for RL to unlearn, if cold_start.failures says that failures are trained on too. The others halve what is left, which a
tiny model learns within minutes; to guess any number that is left, it does not.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pipeline import config
from pipeline.number_guessing import NUMBERS
from workers.environments import Environment, Turn, opening


class NumberGuessing(Environment):
    def __init__(self, turns: int, lost: float = 0.0):
        self.turns, self.lost = turns, lost
        self.low, self.high = 0, NUMBERS - 1  # where the number still can be
        self.number = 0
        self.demonstration = random.Random()
        self.demonstrate_lost = False

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: config.Environment) -> AsyncIterator[Callable[[], Environment]]:
        yield lambda: cls(settings.max_turns, **settings.options)

    async def reset(self, prompt: dict[str, Any], seed: int) -> Turn:
        self.number = int(prompt["answer"])
        self.demonstration = random.Random(seed)
        self.demonstrate_lost = self.demonstration.random() < self.lost
        return Turn(opening(prompt))

    async def step(self, reply: str) -> Turn:
        self.turns -= 1
        guess = _guess(reply)
        if guess == self.number:
            return Turn([], reward=1.0, done=True)
        metrics = {"invalid": 1} if guess is None else {}
        if not self.turns:
            return Turn([], reward=0.0, done=True, metrics=metrics)
        return Turn([{"role": "user", "content": self._hint(guess)}], metrics=metrics)

    def _hint(self, guess: int | None) -> str:
        if guess is None:
            return "invalid"
        if guess < self.number:
            self.low = max(self.low, guess + 1)
            return "higher"
        self.high = min(self.high, guess - 1)
        return "lower"

    def demonstrate(self) -> str:
        """The middle of what is left, or any number at all."""
        if self.demonstrate_lost:
            return str(self.demonstration.randrange(NUMBERS))
        return str((self.low + self.high) // 2)


def _guess(reply: str) -> int | None:
    text = reply.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(NUMBERS - 1)) else None
