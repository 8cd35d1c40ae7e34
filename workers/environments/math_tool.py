"""Math problems with a confined Python tool.

    user       12 * 7 = ?
    assistant  <tool_call>
               {"name": "python", "arguments": {"code": "print(12 * 7)"}}
               </tool_call>
    tool       84
    assistant  <answer>84</answer>                    reward 1 if the verifier gives it its full score, else 0

A reply with neither, or with a call that cannot be read, ends the episode with reward 0; the metrics `no_answer` and
`malformed_call` count them. What the code raises is text for the model; a sandbox that fails is a failure. Variables
live as long as the episode, and like in a notebook a call shows the value of a last line that is an expression.

Options: `instructions`, a system message for models that need one; the tool is then described to the model as well.
`last_number`: a reply without <answer> answers with the last number in it, as in GSM8K's own "… #### 84".
`direct`, the share of scripted demonstrations that answer at once, without the tool: right as well, but a habit that
does not carry over to sums which the model cannot do in its head, and so one for RL to unlearn.
"""

import json
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from pipeline import config
from workers.environments import Environment, Turn
from workers.sandbox import Limits, PythonSandbox

PYTHON = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run Python code; answers with what it prints and the value of a last expression.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}
CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
NUMBER = re.compile(r"(?<![\d)])-?\d[\d,]*(?:\.\d+)?")  # the minus of 9-2 is none of the number's
# Tasks whose whole question is an expression; the words round it would only cost a tiny model tokens.
EXPRESSIONS = {"chain_sum", "products"}


class MathTool(Environment):
    def __init__(self, sandbox: PythonSandbox, instructions: str = "", direct: float = 0.0, last_number: bool = False):
        self.instructions, self.direct, self.last_number = instructions, direct, last_number
        self.python = sandbox.session()
        self.tools = [PYTHON] if instructions else []
        self.problem: dict[str, Any] = {}
        self.observation: str | None = None
        self.demonstrate_directly = False

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: config.Environment) -> AsyncIterator[Callable[[], Environment]]:
        limits = Limits(settings.tool_timeout_s, settings.tool_memory_mb, settings.tool_output_bytes)
        sandbox = PythonSandbox(limits, settings.tool_concurrency, settings.allow_unconfined, settings.tool_preload)
        async with sandbox:
            yield lambda: cls(sandbox, **settings.options)

    async def reset(self, prompt: dict[str, Any], seed: int) -> Turn:
        self.problem = prompt
        self.demonstrate_directly = random.Random(seed).random() < self.direct
        expression = self._expression()
        question = f"{expression} = ?" if expression else prompt["question"]
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return Turn([*system, {"role": "user", "content": question}])

    async def step(self, reply: str) -> Turn:
        if call := CALL.search(reply):
            code = read_call(call[1])
            if code is None:
                return Turn([], reward=0.0, done=True, metrics={"malformed_call": 1})
            result = await self.python.run(code)
            self.observation = result.output.strip()
            if result.error:
                lost = "; all variables are lost" if result.state_lost else ""
                self.observation = f"{self.observation}\n[{result.error}{lost}]".strip()
            return Turn([{"role": "tool", "content": self.observation}], metrics={"tool_calls": 1})
        if answer := ANSWER.search(reply):
            return Turn([], reward=verify(self.problem, answer[1].strip()), done=True)
        if self.last_number and (numbers := NUMBER.findall(reply)):
            return Turn([], reward=verify(self.problem, numbers[-1]), done=True)
        return Turn([], reward=0.0, done=True, metrics={"no_answer": 1})

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
        arguments = json.dumps({"name": "python", "arguments": {"code": f"print({expression})"}})
        return f"<tool_call>\n{arguments}\n</tool_call>"

    def _expression(self) -> str | None:
        return self.problem["metadata"]["expression"] if self.problem.get("task") in EXPRESSIONS else None


def read_call(text: str) -> str | None:
    """The code of a call in the form of Hermes and Qwen, or None if this is not one."""
    try:
        call = json.loads(text)
        code = call["arguments"]["code"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return code if call.get("name") == "python" and isinstance(code, str) else None


def verify(problem: dict[str, Any], answer: str) -> float:
    """1.0 if reasoning-gym's verifier of the problem's task gives the answer its full score, else 0.0: an answer that
    merely contains the right one earns it a part, which would teach a model to list many. Other problems: equality."""
    expected = str(problem["answer"]).strip()
    if answer == expected:
        return 1.0
    if "task" not in problem:
        return float(_number(answer) is not None and _number(answer) == _number(expected))
    score = _scorer(problem["task"])
    try:
        return float(score(answer, problem) == 1.0)
    except Exception:  # some verifiers raise on answers that they cannot parse: such an answer is wrong
        return 0.0


@cache
def _scorer(task: str) -> Callable[[str, dict[str, Any]], float]:
    import reasoning_gym  # here, because it takes a second to import and answers are mostly equal to the expected one

    return reasoning_gym.get_score_answer_fn(task)


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").lstrip("$"))
    except ValueError:
        return None
