"""How well a policy does: problems × n episodes on engines that serve one version. Nothing here touches the ledger.

    python -m workers.evaluate values RUN.toml --engine URL …                  training problems → values.jsonl
    python -m workers.evaluate eval RUN.toml --engine URL … [--version V]      held-out problems → one line of JSON

values.jsonl has one line a problem, as pipeline/first_values.py writes it; the prompts' first values come from it.
Version 0 is loaded into the engines first; stopped and started again, only what is missing is played. A worker hosts
held-out evaluations with the same `score` (eval_host.py).
"""

import argparse
import asyncio
import itertools
import json
import logging
import math
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any

from pipeline import config, config_file, first_values
from pipeline.data import Problem, evaluation_problems
from pipeline.engine_processes import load_version
from pipeline.errors import HeadraceError
from pipeline.ledger_types import Reservation
from pipeline.log import set_up
from pipeline.program import run
from pipeline.weights import Label
from workers.chat import Chat
from workers.engine import Engine, EngineError, connections, sampling
from workers.environments import Environment, open_environment
from workers.episode import EpisodeFailed, play

log = logging.getLogger(__name__)

ATTEMPTS = 4  # of one episode; a pause of 0.5, 1 and 2 s between them


class EvaluationFailed(HeadraceError):
    """An episode kept failing, or the engines serve another version."""

    code = "EVALUATION"


class Scorer:
    """Plays problems outside the ledger. next_engine: gives the engine of the next episode; version: the only one that
    may answer, None: any published one."""

    def __init__(
        self,
        settings: config.Config,
        chat: Chat,
        make_environment: Callable[[], Environment],
        next_engine: Callable[[], Engine],
        version: int | None = None,
    ):
        self.settings, self.chat, self.make_environment = settings, chat, make_environment
        self.next_engine, self.version = next_engine, version
        self.versions: set[int] = set()  # seen in the replies

    async def score(
        self,
        problems: list[Problem],
        n: int,
        scored: Callable[[Problem, list[float]], None] = lambda problem, outcomes: None,
    ) -> list[list[float]]:
        """n outcomes of each problem, in the order of problems; `scored` is called with each problem as it is done.

        Raises EvaluationFailed.
        """
        outcomes: list[list[float]] = [[] for _ in problems]
        jobs = ((index, number) for index in range(len(problems)) for number in range(n))

        async def player() -> None:
            for index, number in jobs:  # one iterator, shared by all players
                outcomes[index].append(await self.outcome(problems[index], number))
                if len(outcomes[index]) == n:
                    scored(problems[index], outcomes[index])

        try:
            async with asyncio.TaskGroup() as players:
                for _ in range(min(self.settings.rollout.concurrency, n * len(problems))):
                    players.create_task(player())
        except* HeadraceError as group:
            raise group.exceptions[0] from None
        return outcomes

    async def outcome(self, problem: Problem, number: int) -> float:
        """One episode's outcome, in [0, 1]; a failure is no outcome: it is tried again. number: of the problem's n."""
        for attempt in range(ATTEMPTS):
            r = Reservation.outside_ledger(problem, uuid.uuid4().hex, self.version or 0, attempt + 1, number)
            try:
                trajectory = await play(r, self.make_environment(), self.next_engine(), self.chat, self.settings)
            except (EngineError, EpisodeFailed) as error:
                if error.code == "PROMPT_TOO_LONG":  # at every attempt
                    raise EvaluationFailed(str(error)) from None
                log.warning("an episode failed: %s", error, extra={"prompt": problem["id"], "attempt": attempt + 1})
                failure = error
                await asyncio.sleep(0.5 * 2**attempt)
                continue
            found = {segment.version for segment in trajectory.segments}
            if self.version is not None and found != {self.version}:
                raise EvaluationFailed(f"expected replies of version {self.version}, found {sorted(found)}")
            self.versions |= found
            return trajectory.outcome
        raise EvaluationFailed(f"problem {problem['id']} failed {ATTEMPTS} times, the last time with: {failure}")


def summarize(outcomes: list[list[float]]) -> tuple[float, float]:
    """Mean outcome, and its standard error over problems."""
    means = [statistics.fmean(each) for each in outcomes]
    stderr = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    return statistics.fmean(means), stderr


async def values(settings: config.Config, urls: list[str]) -> None:
    """Play what {run folder}/values.jsonl lacks. The engines must serve version 0."""
    missing, n, done = first_values.missing(settings), settings.advantage.offline_rollouts, 0

    def scored(problem: Problem, outcomes: list[float]) -> None:
        nonlocal done
        first_values.add(settings, problem, outcomes)
        done += 1
        if done % max(1, len(missing) // 10) == 0:
            log.info("%d of %d prompts are scored", done, len(missing))

    if missing:
        first_values.begin(settings)
        await _with_scorer(settings, urls, 0, None, lambda scorer: scorer.score(missing, n, scored))


async def evaluation(settings: config.Config, urls: list[str], version: int | None = None) -> dict[str, Any]:
    """{"version", "success", "stderr", "trajectories", "seconds"} of the held-out problems."""
    problems, begun = evaluation_problems(settings), time.monotonic()
    if not problems:
        raise EvaluationFailed("nothing to evaluate on: add [eval.data] to the run's file")
    seen: set[int] = set()

    async def score(scorer: Scorer) -> list[list[float]]:
        found = await scorer.score(problems, settings.eval.n)
        seen.update(scorer.versions)
        return found

    outcomes = await _with_scorer(settings, urls, version, settings.eval.temperature, score)
    if len(seen) != 1:
        raise EvaluationFailed(f"expected engines that serve one version, found {sorted(seen)}")
    success, stderr = summarize(outcomes)
    count, seconds = sum(map(len, outcomes)), round(time.monotonic() - begun, 3)
    return {"version": seen.pop(), "success": success, "stderr": stderr, "trajectories": count, "seconds": seconds}


async def _with_scorer(
    settings: config.Config, urls: list[str], version: int | None, temperature: float | None, use: Callable
) -> Any:
    chat = Chat(settings.model_path)
    parameters = sampling(settings.rollout, chat.end_token, temperature)

    async def published(label: Label) -> bool:  # whoever loaded the weights has verified them
        return label.run == settings.run.name

    async with open_environment(settings.environment) as make_environment, connections() as http:
        timeout = settings.rollout.request_timeout_s
        engines = itertools.cycle([Engine(url, url, http, parameters, published, timeout) for url in urls])
        return await use(Scorer(settings, chat, make_environment, lambda: next(engines), version))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.evaluate", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["values", "eval"])
    parser.add_argument("run", metavar="RUN.toml")
    parser.add_argument("--engine", action="append", metavar="URL", help="else engines.urls")
    parser.add_argument("--version", type=int, help="the only version that may answer (eval)")
    arguments = parser.parse_args()
    settings = config_file.load(arguments.run)
    set_up(settings, arguments.what)
    urls = arguments.engine or settings.engines.urls
    if not urls:
        parser.error("no engine: give --engine URL, or set engines.urls")
    if arguments.what == "values":
        for url in urls if first_values.missing(settings) else []:  # of a run that goes on, they serve newer versions
            load_version(url, settings.folder / "weights" / "0", settings)
        asyncio.run(values(settings, urls))
    else:
        print(json.dumps(asyncio.run(evaluation(settings, urls, arguments.version))))


if __name__ == "__main__":
    run(main)
