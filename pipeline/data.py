"""Problems: the records that prompts are made of.

    [data]       tasks (reasoning-gym) or path (JSONL) ─┐
    [eval.data]  the same, another seed or file ────────┼──▶ records: {"id", "question", "answer", …}
    [cold_start] tasks of [data], another seed ─────────┘

No question of the evaluation is ever trained on: training and cold-start problems that ask one are left out.
A JSONL line is a JSON object; `question` is required, `id` defaults to `<file's stem>-<line>`, every other key is
passed to the environment untouched. With data.answer_after = "####", as GSM8K needs it, `answer` is what follows the
last #### in it, and the whole of it becomes `solution`.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.config import Config, Data
from pipeline.errors import ConfigError

Problem = dict[str, Any]

# Far from any seed a person would choose: reasoning-gym draws item i of seed s from random.Random(s + i).
COLD_START_SEED = 1_000_000_007


def evaluation_problems(config: Config) -> list[Problem]:
    """Held-out problems of [eval.data]; none without it."""
    return _draw(config.eval.data, set(), "eval.data") if config.eval.data else []


def training_problems(config: Config) -> list[Problem]:
    """Problems of [data] whose question is not asked in the evaluation."""
    return _draw(config.data, _questions(evaluation_problems(config)), "data")


def cold_start_problems(config: Config) -> list[Problem]:
    """`cold_start.problems` problems for scripted traces: the tasks of [data] with another seed, or its file's own
    problems; none of them in the evaluation."""
    if config.cold_start is None:
        return []
    seed = config.data.seed + COLD_START_SEED
    data = config.data.model_copy(update={"size": config.cold_start.problems, "seed": seed})
    return _draw(data, _questions(evaluation_problems(config)), "cold_start")


def _draw(data: Data, excluded: set[str], section: str) -> list[Problem]:
    """`data.size` problems with distinct questions, none of them in `excluded`; all of a file that has fewer."""
    if data.path:
        problems = list(islice(_distinct(_lines(data.path, data.answer_after), excluded), data.size))
        if not problems:
            raise ConfigError(f"{section}.path = {data.path}: no problem is left; every question is in the evaluation")
        return problems
    if not data.tasks:
        raise ConfigError(f"{section}: no problems; set {section}.path (JSONL) or {section}.tasks (reasoning-gym)")
    share, rest = divmod(data.size, len(data.tasks))
    problems = []
    for position, (task, parameters) in enumerate(data.tasks.items()):
        wanted = share + (position < rest)
        candidates = _generate(task, parameters, 20 * wanted + len(excluded) + 100, data.seed, section)
        found = list(islice(_distinct(candidates, excluded), wanted))
        if len(found) < wanted:
            raise ConfigError(
                f"{section}.tasks.{task}: expected {wanted} distinct questions outside the evaluation, found "
                f"{len(found)}; widen the task's parameters or lower {section}.size"
            )
        problems += found
    return problems


def _generate(task: str, parameters: dict[str, Any], size: int, seed: int, section: str) -> Iterator[Problem]:
    try:
        import reasoning_gym  # here, because it takes a second to import and a JSONL file does not need it
    except ImportError as error:
        raise ConfigError(
            f"{section}.tasks needs reasoning-gym ({error}): pip install 'headrace[rollout]', or set {section}.path"
        ) from None
    try:
        dataset = reasoning_gym.create_dataset(task, size=size, seed=seed, **parameters)
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"{section}.tasks.{task}: reasoning-gym refuses it: {error}") from None
    for index in range(size):
        item = dataset[index]
        metadata = {key: value for key, value in item["metadata"].items() if key != "difficulty"}
        record = {"id": f"{task}-{index}", "task": task, "question": item["question"], "answer": item["answer"]}
        # Through JSON, so that a record read back from Redis equals the one generated here (tuples, dates, …).
        yield json.loads(json.dumps(record | {"metadata": metadata}, default=str))


def _lines(path: Path, answer_after: str | None) -> Iterator[Problem]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"data.path = {path}: expected a JSONL file of problems, found: {error}") from None
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path}, line {number}: not valid JSON: {error}") from None
        if not isinstance(record, dict) or not isinstance(record.get("question"), str):
            raise ConfigError(f'{path}, line {number}: expected an object with a string "question", found {line[:80]}')
        record["id"] = str(record.get("id", f"{path.stem}-{number}"))
        if record["id"] in seen:
            raise ConfigError(
                f"{path}, line {number}: the id {record['id']!r} is used twice; give each problem its own"
            )
        seen.add(record["id"])
        if answer_after is not None:
            record |= _solved(record, answer_after, f"{path}, line {number}")
        yield record


def _solved(record: Problem, answer_after: str, place: str) -> Problem:
    solution = record.get("answer")
    _, found, answer = solution.rpartition(answer_after) if isinstance(solution, str) else ("", "", "")
    if not found or not answer.strip():
        raise ConfigError(
            f'{place}: expected "answer" to end with {answer_after!r} (data.answer_after) and the answer proper, '
            f"found {solution!r:.80}; mend or remove the line"
        )
    return {"answer": answer.strip(), "solution": solution}


def _distinct(problems: Iterable[Problem], excluded: set[str]) -> Iterator[Problem]:
    seen = set(excluded)
    for problem in problems:
        question = _normal(problem["question"])
        if question not in seen:
            seen.add(question)
            yield problem


def _questions(problems: Iterable[Problem]) -> set[str]:
    return {_normal(problem["question"]) for problem in problems}


def _normal(question: str) -> str:
    """Spacing and case make no new question."""
    return " ".join(question.split()).casefold()
