"""Math problems with a confined Python tool.

    user       12 * 7 = ?
    assistant  <tool_call>
               {"name": "python", "arguments": {"code": "print(12 * 7)"}}
               </tool_call>
    tool       84
    assistant  <answer>84</answer>                    reward 1 if the verifier gives it its full score, else 0

A reply with neither, or with a call that cannot be read, ends the episode with reward 0; the metrics `no_answer` and
`malformed_calls` count them. Of several calls in a reply the first one runs. What the code raises is text for the
model; a sandbox that fails is a failure. Variables live as long as the episode, and like in a notebook a call shows the
value of a last line that is an expression.

Options: `instructions`, a system message for models that need one; the tool is then described to the model as well.
`last_number`: a reply without <answer> answers with the last number in it, as in GSM8K's own "… #### 84".
`direct`, the share of scripted demonstrations that answer at once, without the tool: right as well, but a habit that
does not carry over to sums which the model cannot do in its head, and so one for RL to unlearn.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pipeline import config
from workers.environments import Environment, Turn, opening
from workers.environments.answers import final, last_number, number, tagged
from workers.environments.judge import Judge, open_judge
from workers.environments.python_tool import PYTHON, PythonTool, observation, open_python
from workers.environments.tool_calls import BadCall, read_calls, write_call

# Tasks whose whole question is an expression; the words round it would only cost a tiny model tokens. Their verifiers
# give a full score to equal numbers alone.
EXPRESSIONS = {"chain_sum", "products"}
NOT_RUN = "[not run: one call at a time]"


class MathTool(Environment):
    def __init__(
        self,
        python: PythonTool,
        judge: Judge,
        instructions: str = "",
        direct: float = 0.0,
        last_number: bool = False,
    ):
        self.instructions, self.direct, self.last_number = instructions, direct, last_number
        self.python, self.judge = python, judge
        self.tools = [PYTHON] if instructions else []
        self.problem: dict[str, Any] = {}
        self.observation: str | None = None
        self.demonstrate_directly = False

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: config.Environment) -> AsyncIterator[Callable[[], Environment]]:
        async with open_python(settings) as python, open_judge("tasks", settings) as judge:
            yield lambda: cls(python(), judge, **settings.options)

    async def reset(self, prompt: dict[str, Any], seed: int) -> Turn:
        self.problem = prompt
        self.demonstrate_directly = random.Random(seed).random() < self.direct
        expression = self._expression()
        if expression:
            prompt = {"question": f"{expression} = ?"}
        return Turn(opening(prompt, self.instructions))

    async def step(self, reply: str) -> Turn:
        if calls := read_calls(reply, [PYTHON]):
            if isinstance(calls[0], BadCall):
                return Turn([], reward=0.0, done=True, metrics={"malformed_calls": 1})
            result = await self.python.run(calls[0].arguments["code"], self.python.until())
            self.observation = observation(result)
            said = [self.observation] + [NOT_RUN] * (len(calls) - 1)
            return Turn([{"role": "tool", "content": each} for each in said], metrics={"tool_calls": 1})
        text = final(reply)
        answer = tagged(text)
        if answer is None and self.last_number:
            answer = last_number(text)
        if answer is None:
            return Turn([], reward=0.0, done=True, metrics={"no_answer": 1})
        return await self._verify(answer)

    async def _verify(self, answer: str) -> Turn:
        """Reward 1 for the verifier's full score, else 0: an answer that merely contains the right one earns it a part,
        which would teach a model to list many. Problems of no task: equality, of numbers by value."""
        expected = str(self.problem["answer"]).strip()
        task = self.problem.get("task")
        if answer == expected:
            return Turn([], reward=1.0, done=True)
        if task is None or task in EXPRESSIONS:
            return Turn([], reward=float(number(answer) == number(expected) is not None), done=True)
        verdict = await self.judge(answer, self.problem)
        return Turn([], reward=float(verdict.score == 1.0), done=True, metrics=verdict.metrics)

    async def close(self) -> None:
        await self.python.close()

    def demonstrate(self) -> str | None:
        """Call the tool with the problem's own expression, then answer with what it printed; or answer at once."""
        if self.observation is not None:
            return f"<answer>{self.observation}</answer>"
        if self.demonstrate_directly:
            return f"<answer>{self.problem['answer']}</answer>"
        if not (expression := self._expression()):
            return None
        return write_call("python", code=f"print({expression})")

    def _expression(self) -> str | None:
        return self.problem["metadata"]["expression"] if self.problem.get("task") in EXPRESSIONS else None
