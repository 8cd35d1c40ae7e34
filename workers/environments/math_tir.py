r"""Math-TIR: competition problems with a Python tool, called as the model's own chat template has it.

    system     Solve the problem … put the final answer in \boxed{}        the template adds the tool's schema
    user       What is the sum of the digits of 2^100?
    assistant  <tool_call> {"name": "python", "arguments": {"code": "n = 2**100"}} </tool_call>
    tool
    assistant  <tool_call> {"name": "python", "arguments": {"code": "print(sum(map(int, str(n))))"}} </tool_call>
    tool       115
    assistant  The sum is \boxed{115}.                                      reward 1 if math-verify says so, else 0

Source: the Math-TIR setting of arXiv 2608.24870, section 4.1 and appendix A. What it leaves open is decided here:
- Variables live as long as the episode: one sandbox session.
- A reply's calls run in their order, each answered by a message of its own, the first MOST_CALLS of them, and share
  the step's time; they come before any answer in the same reply, which the model wrote without having seen what they
  print.
- A call that cannot be read is answered with what was expected, as any tool would (`malformed_calls`); a call whose
  code fails, with what Python says (`failed_calls`). A reply with neither a call nor a box ends the episode with reward
  0 (`no_answer`); so does an answer that the judge cannot be done with (`judge_timeout`, …).

Options: `instructions`, the system message; empty for none.
"""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pipeline import config
from workers.environments import Environment, Turn, opening
from workers.environments.answers import boxed, final, number
from workers.environments.judge import Judge, open_judge
from workers.environments.python_tool import PYTHON, PythonTool, observation, open_python
from workers.environments.tool_calls import BadCall, Call, read_calls, write_call

INSTRUCTIONS = (
    "Solve the problem. Use the python tool to compute: its variables remain from call to call, and you see only what "
    r"is printed. Put the final answer in \boxed{}."
)
MOST_CALLS = 4  # of one reply
CALCULATION = re.compile(r"<<([\d.+\-*/() ]+)=[^<>]*>>")  # GSM8K's solutions carry them out: 48/2 = <<48/2=24>>24


class MathTir(Environment):
    tools = (PYTHON,)

    def __init__(self, python: PythonTool, judge: Judge, instructions: str = INSTRUCTIONS):
        self.judge, self.instructions = judge, instructions
        self.problem: dict[str, Any] = {}
        self._python = python
        self._printed: str | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: config.Environment) -> AsyncIterator[Callable[[], Environment]]:
        async with open_python(settings) as python, open_judge("math", settings) as judge:
            await judge.start()
            yield lambda: cls(python(), judge, **settings.options)

    async def reset(self, prompt: dict[str, Any], seed: int) -> Turn:
        self.problem = prompt
        return Turn(opening(prompt, self.instructions))

    async def step(self, reply: str) -> Turn:
        if calls := read_calls(reply, self.tools):
            return await self._call(calls)
        if (answer := boxed(final(reply))) is None:
            return Turn([], reward=0.0, done=True, metrics={"no_answer": 1})
        verdict = await self.judge(answer, {"answer": self.problem["answer"]})
        return Turn([], reward=verdict.score, done=True, metrics=verdict.metrics)

    async def close(self) -> None:
        await self._python.close()

    async def _call(self, calls: list[Call | BadCall]) -> Turn:
        messages, metrics = [], {"tool_calls": 0, "malformed_calls": 0, "failed_calls": 0}
        until = self._python.until()
        for position, call in enumerate(calls, 1):
            if position > MOST_CALLS:
                said = f"[not run: at most {MOST_CALLS} calls at once]"
            elif isinstance(call, BadCall):
                metrics["malformed_calls"] += 1
                said = f"[not run: {call.problem}]"
            else:
                result = await self._python.run(call.arguments["code"], until)
                metrics["tool_calls"] += 1
                metrics["failed_calls"] += result.error is not None
                said = self._printed = observation(result)
            messages.append({"role": "tool", "content": said})
        return Turn(messages, metrics={name: value for name, value in metrics.items() if value})

    def demonstrate(self) -> str | None:
        """One call with the calculations of a GSM8K solution, then the answer, if it is what was printed last."""
        if self._printed is not None:
            last, answer = self._printed.rpartition("\n")[2], str(self.problem["answer"])
            return rf"The answer is \boxed{{{answer}}}." if number(last) == number(answer) is not None else None
        calculations = CALCULATION.findall(self.problem.get("solution", ""))
        if not calculations:
            return None
        return write_call("python", code="\n".join(f"print({each.strip()})" for each in calculations))
