"""The task of the sweep: write so many letters. The n-th episode of a worker asks for the n-th length of the case."""

from itertools import count
from typing import ClassVar

from tests.sweep.case import Case
from workers.environments import Environment, Turn


class Letters(Environment):
    begun: ClassVar[count] = count()

    def __init__(self, seed: int):
        self.lengths = Case(0, seed=seed).lengths

    async def reset(self, prompt, seed):
        return Turn([{"role": "user", "content": f"reply with {self.lengths[next(self.begun)]} letters"}])

    async def step(self, reply):
        return Turn([], reward=1.0, done=True)
