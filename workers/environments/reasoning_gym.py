"""Any task of reasoning-gym, scored by its own verifier.

    system     Give the final answer between <answer> and </answer>.
    user       Calculate the greatest common divisor of 26 and 65.
    assistant  … <answer>12</answer>
    user       That is not right. Try again.                       as long as `tries` are left
    assistant  <answer>13</answer>                                 reward: the verifier's score

The problems come from [data] tasks. The score, in [0, 1] and maybe partial, is the reward. Verifiers run in a process
of their own (judge.py): some raise, which is a score of 0 (`judge_exception`), and some evaluate the answer, which must
be arithmetic or lists then (evaluated.py).

Options: `instructions`, the system message; empty for none. `tries`: answers in one episode, 1 by default; the last one
counts, and one of full score ends it. The run's environment.max_turns must allow them.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pipeline import config
from workers.environments import Environment, Turn, opening
from workers.environments.answers import final, tagged
from workers.environments.judge import Judge, open_judge

INSTRUCTIONS = "Give the final answer between <answer> and </answer>."
AGAIN = "That is not right. Try again."


class ReasoningGym(Environment):
    def __init__(self, judge: Judge, instructions: str = INSTRUCTIONS, tries: int = 1):
        if tries < 1:
            raise ValueError(f"expected tries to be at least 1, found {tries}")
        self.judge, self.instructions, self.tries = judge, instructions, tries
        self.problem: dict[str, Any] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: config.Environment) -> AsyncIterator[Callable[[], Environment]]:
        async with open_judge("tasks", settings) as judge:
            await judge.start()
            yield lambda: cls(judge, **settings.options)

    async def reset(self, prompt: dict[str, Any], seed: int) -> Turn:
        self.problem = prompt
        return Turn(opening(prompt, self.instructions))

    async def step(self, reply: str) -> Turn:
        self.tries -= 1
        answer = tagged(final(reply))
        if answer is None:
            score, metrics = 0.0, {"no_answer": 1}
        else:
            verdict = await self.judge(answer, self.problem)
            score, metrics = verdict.score, verdict.metrics
        if score < 1 and self.tries > 0:
            return Turn([{"role": "user", "content": AGAIN}], metrics=metrics)
        return Turn([], reward=score, done=True, metrics=metrics)

    def demonstrate(self) -> str | None:
        """The problem's own answer, where the task knows one."""
        answer = self.problem["answer"]
        return None if answer is None else f"<answer>{answer}</answer>"
