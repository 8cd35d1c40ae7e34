r"""One question, one reply, an answer that can be verified.

    system     (instructions)
    user       What is 12 * 7?
    assistant  … <answer>84</answer>  or  \boxed{84}                        reward 1 or 0

Options:
- `verify`: "exact", the answer's text, spacing and case aside; "number", its value, thousands separated or not;
  "math", as math-verify sees it, in a process of its own (judge.py).
- `instructions`, the system message.

The answer is the reply's last box, else its last <answer>; in a reply with neither it is, for "number", the last number
("… #### 84"), and for "exact" the whole reply. No answer is reward 0 and counted as `no_answer`. A thought, which ends
at </think>, is no part of the reply.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pipeline import config
from workers.environments import Environment, Turn, opening
from workers.environments.answers import boxed, final, last_number, number, tagged
from workers.environments.judge import Judge, open_judge

WAYS = ("exact", "number", "math")


class SingleTurn(Environment):
    def __init__(self, judge: Judge | None, verify: str = "exact", instructions: str = ""):
        if verify not in WAYS:
            raise ValueError(f"expected verify to be one of {', '.join(WAYS)}, found {verify!r}")
        self.judge, self.verify, self.instructions = judge, verify, instructions
        self.problem: dict[str, Any] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: config.Environment) -> AsyncIterator[Callable[[], Environment]]:
        async with AsyncExitStack() as stack:
            judge = None
            if settings.options.get("verify") == "math":
                judge = await stack.enter_async_context(open_judge("math", settings))
                await judge.start()
            yield lambda: cls(judge, **settings.options)

    async def reset(self, prompt: dict[str, Any], seed: int) -> Turn:
        self.problem = prompt
        return Turn(opening(prompt, self.instructions))

    async def step(self, reply: str) -> Turn:
        answer, expected = self._answer(final(reply)), str(self.problem["answer"])
        if answer is None:
            return Turn([], reward=0.0, done=True, metrics={"no_answer": 1})
        if self.judge is not None:
            verdict = await self.judge(answer, {"answer": expected})
            return Turn([], reward=verdict.score, done=True, metrics=verdict.metrics)
        if self.verify == "number":
            right = number(answer) is not None and number(answer) == number(expected)
        else:
            right = _plain(answer) == _plain(expected)
        return Turn([], reward=float(right), done=True)

    def _answer(self, text: str) -> str | None:
        found = boxed(text)
        found = tagged(text) if found is None else found
        if found is None and self.verify == "number":
            return last_number(text)
        if found is None and self.verify == "exact":
            return text
        return found


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
