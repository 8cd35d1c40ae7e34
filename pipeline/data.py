"""Problems: the records that prompts are made of.

    [data]       tasks (reasoning-gym) or path (data_files.py) ─┐     path may be a folder of games: game_folders.py
    [eval.data]  the same, another seed or file ────────────────┼──▶ records: {"id", "question", "answer", …}
    [cold_start] tasks of [data], another seed ─────────────────┘

No question of the evaluation is ever trained on: training and cold-start problems that ask one are left out. Of a
file's rows (data_rows.py says how they may look) those that cannot be used, and those that ask what another asked, are
reported with their place and left out; only a file without any that can be used is refused. A row's `id` is its own,
or `<file's stem>-<line>`, whatever else is read.
"""

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline import game_folders, number_guessing
from pipeline.config import Config, Data
from pipeline.data_files import Unusable, rows, stem
from pipeline.data_rows import Problem, problem_of
from pipeline.errors import ConfigError

log = logging.getLogger(__name__)

SHOWN = 3  # rows that are left out, in the report on all of them

# Far from any seed a person would choose: reasoning-gym draws item i of seed s from random.Random(s + i).
COLD_START_SEED = 1_000_000_007


def check_files(config: Config) -> None:
    """Read the files that [data] and [eval.data] name, if any; of a data set of the hub this is what fetches it, since
    the processes of a run stay off the network. Raises ConfigError."""
    if config.data.path or (config.eval.data and config.eval.data.path):  # tasks take longer; no person typed them
        training_problems(config)


def evaluation_problems(config: Config) -> list[Problem]:
    """Held-out problems of [eval.data], games with their paths here: no other process is told; none without it."""
    if config.eval.data is None:
        return []
    problems = _draw(config.eval.data, set(), "eval.data", _needs_answer(config))
    return [game_folders.located(problem, config.eval.data.path) for problem in problems]


def training_problems(config: Config) -> list[Problem]:
    """Problems of [data] whose question is not asked in the evaluation."""
    return _draw(config.data, _questions(evaluation_problems(config)), "data", _needs_answer(config))


def cold_start_problems(config: Config) -> list[Problem]:
    """`cold_start.problems` problems for scripted traces: the tasks of [data] with another seed, or its file's own
    problems; none of them in the evaluation."""
    if config.cold_start is None:
        return []
    seed = config.data.seed + COLD_START_SEED
    data = config.data.model_copy(update={"size": config.cold_start.problems, "seed": seed})
    return _draw(data, _questions(evaluation_problems(config)), "cold_start", _needs_answer(config))


def training_texts(config: Config) -> list[str]:
    """For a tokenizer made on the spot: the questions of [data], and what its games can say."""
    problems = [game_folders.located(problem, config.data.path) for problem in training_problems(config)]
    return [text for problem in problems for text in (problem["question"], *game_folders.texts(problem))]


def file_problems(path: Path) -> list[Problem]:
    """All that can be used of a file or data set, with or without answers; games with their paths."""
    problems = _read(Data(path=path, size=sys.maxsize), set(), "data", False)
    return [game_folders.located(problem, path) for problem in problems]


def _needs_answer(config: Config) -> bool:
    """What is built in judges by the problem's answer, unless it plays games; a user's own has its own keys."""
    return ":" not in config.environment.name and config.environment.name != "alfworld"


def _draw(data: Data, excluded: set[str], section: str, needs_answer: bool) -> list[Problem]:
    """`data.size` problems with distinct questions, none of them in `excluded`; all of a file that has fewer."""
    if data.path:
        return _read(data, excluded, section, needs_answer)
    if not data.tasks:
        raise ConfigError(f"{section}: no problems; set {section}.path (a file) or {section}.tasks (reasoning-gym)")
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
    if task == number_guessing.TASK:
        if parameters:
            raise ConfigError(f"{section}.tasks.{task} has no parameters, found {parameters}: set it to {{}}")
        yield from number_guessing.games(size, seed)
        return
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


def _read(data: Data, excluded: set[str], section: str, needs_answer: bool) -> list[Problem]:
    problems: list[Problem] = []
    asked: dict[str, str] = {}  # question -> where
    ids: dict[str, str] = {}
    unusable, repeated, count = [], [], 0
    read = game_folders.rows(data.path) if game_folders.holds_games(data.path) else rows(data.path, section)
    for place, row in read:
        count += 1
        try:
            if isinstance(row, Unusable):
                raise row
            problem = problem_of(row, needs_answer)
            problem["id"] = str(problem.get("id", f"{stem(data.path)}-{place.rpartition(' ')[2]}"))
            if problem["id"] in ids:
                raise Unusable(f"the id {problem['id']!r} is that of {ids[problem['id']]}; give each problem its own")
        except Unusable as error:
            unusable.append(f"{place}: {error}")
            continue
        ids[problem["id"]] = place
        question = _normal(problem["question"])
        if question in asked:
            repeated.append(f"{place} asks what {asked[question]} does")
            continue
        asked[question] = place
        if question not in excluded:
            problems.append(problem)
            if len(problems) == data.size:
                break
    name = f"{section}.path = {data.path}"
    if not asked:
        found = _first(unusable) if unusable else "it is empty"
        raise ConfigError(f"{name}: no row can be used; {found}")
    read = f"the first {count} rows" if len(problems) == data.size else f"{count} rows"  # no more were asked for
    if unusable:
        log.warning("%s: %d of %s cannot be used; %s", name, len(unusable), read, _first(unusable))
    if repeated:
        log.warning("%s: %d of %s are duplicates; %s", name, len(repeated), read, _first(repeated))
    if not problems:
        raise ConfigError(f"{name}: no problem is left; every question is in the evaluation")
    return problems


def _first(reasons: list[str]) -> str:
    more = f"; and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
    return "; ".join(reasons[:SHOWN]) + more


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
