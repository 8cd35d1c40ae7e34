"""One row of a data set becomes a problem: {"question", "answer", …}, in whichever known form it is written.

    plain          {"question" | "problem" | "prompt": "…", "answer": "72"}
    GSM8K          {"question": "…", "answer": "48/2 = <<48/2=24>>24 … #### 72"}       the whole becomes `solution`
    DAPO-Math-17K  {"prompt": [{"role": "user", "content": "…"}], "label": "34"}
    verl           {"prompt": [{"role", "content"}, …], "reward_model": {"ground_truth": "34"}, …}

A prompt of several messages is kept whole as `messages`; its last one, the user's, is the question. The frame that
DAPO-Math-17K puts round each problem, which asks for "Answer: …" on the last line, is taken off: how to answer is the
environment's to say. All other keys are passed on untouched.
"""

import math
import re
from typing import Any

from pipeline.data_files import Unusable

Problem = dict[str, Any]

DAPO_FRAME = re.compile(
    r"\s*Solve the following math problem step by step\. The last line of your response should be of the form "
    r"Answer: \$Answer \(without quotes\) where \$Answer is the answer to the problem\.\s*(.*?)\s*"
    r'Remember to put your answer on its own line after "Answer:"\.\s*',
    re.DOTALL,
)
GSM8K_ANSWER = re.compile(r"^#### *(\S.*?)\s*\Z", re.MULTILINE)


def problem_of(row: dict[str, Any], needs_answer: bool) -> Problem:
    """Raises Unusable. needs_answer: the environment judges replies by it."""
    problem = dict(row)
    problem |= _question(problem)
    problem |= _answer(problem)
    answer = problem.get("answer")
    if needs_answer and not _is_answer(answer):
        raise Unusable(
            f'expected an "answer" ("label", "reward_model.ground_truth"), text or number, found {answer!r:.60}'
        )
    return problem


def _question(problem: Problem) -> Problem:
    """What the problem gains; the key that said it goes."""
    if "question" in problem:
        return {"question": _text(problem["question"], "question")}
    if "problem" in problem:
        return {"question": _text(problem.pop("problem"), "problem")}
    if "prompt" not in problem:
        raise Unusable(
            f'expected a "question" ("problem", "prompt"), found the keys {", ".join(problem)[:80] or "none"}'
        )
    prompt = problem.pop("prompt")
    if isinstance(prompt, str):
        return {"question": _text(_unframed(prompt), "prompt")}
    if not (isinstance(prompt, list) and prompt and all(_is_message(each) for each in prompt)):
        raise Unusable(f'expected "prompt" to be text or a list of {{"role", "content"}}, found {prompt!r:.60}')
    if prompt[-1]["role"] != "user":
        raise Unusable(f'expected the user to speak last in "prompt", found {prompt[-1]["role"]!r:.20}')
    question = _text(_unframed(prompt[-1]["content"]), "prompt")
    if len(prompt) == 1:
        return {"question": question}
    return {"question": question, "messages": [*prompt[:-1], prompt[-1] | {"content": question}]}


def _answer(problem: Problem) -> Problem:
    if "answer" not in problem:
        if "label" in problem:
            return {"answer": problem.pop("label")}
        reward_model = problem.get("reward_model")
        found = isinstance(reward_model, dict) and "ground_truth" in reward_model
        return {"answer": reward_model["ground_truth"]} if found else {}
    solution = problem["answer"]
    found = GSM8K_ANSWER.search(solution) if isinstance(solution, str) else None
    return {"answer": found[1], "solution": solution} if found else {}


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Unusable(f'expected "{key}" to be text, found {value!r:.60}')
    return value


def _unframed(content: str) -> str:
    framed = DAPO_FRAME.fullmatch(content)
    return framed[1] if framed else content


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _is_answer(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
