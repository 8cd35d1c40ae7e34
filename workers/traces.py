"""Traces for the cold start: what a script, or a teacher, does with its problems.

    cold-start problems ─▶ play(…, Script, or Teacher × rollouts) ─▶ kept_traces.py ─▶ traces.bin
                             └─ the environment, its tool and its verifier are the real ones

    python -m workers.traces RUN.toml [--engine URL …]        URLs of the teacher; else cold_start.teacher

Stopped and started again, only problems that have no line in traces.jsonl yet are played.
"""

import argparse
import asyncio
import itertools
import logging
import random
from collections.abc import Sequence

import numpy as np

from pipeline import config, config_file, jsonl, traces_of
from pipeline.data import Problem, cold_start_problems
from pipeline.errors import ConfigError, HeadraceError
from pipeline.ledger_types import Reservation
from pipeline.log import set_up
from pipeline.program import run
from pipeline.run_folder import wait_for
from pipeline.trajectory import Segment, Trajectory
from workers import kept_traces
from workers.chat import Chat
from workers.engine import EngineError, EngineRefused, Reply, connections
from workers.environments import Environment, open_environment
from workers.episode import EpisodeFailed, play
from workers.teacher import Teacher

log = logging.getLogger(__name__)

AT_ONCE = 16  # scripted episodes
MODEL_S = 600  # for the cold start's process to make the tiny model, whose tokenizer is needed here
PAUSES_S = (0.5, 1.0, 2.0)  # before an episode is tried again whose teacher did not answer
COMPARED = 8  # questions
PROMISING = 50  # problems: if none of their traces is kept, what is wrong will not be better after the others


class NoDemonstration(EpisodeFailed):
    """The environment has no scripted reply to this turn."""


class Script:
    """Stands in for an engine: says what the environment demonstrates. Its log-probs are 0: it never hesitates."""

    def __init__(self, environment: Environment, chat: Chat):
        self.environment, self.chat = environment, chat

    async def generate(self, tokens: list[int], max_tokens: int, at_least: int = 0, seed: int = 0) -> Reply:
        text = self.environment.demonstrate()
        if text is None:
            raise NoDemonstration("ENVIRONMENT", f"{type(self.environment).__name__}.demonstrate: none for this turn")
        reply = [*self.chat.encode(text), self.chat.end_token]
        if len(reply) > max_tokens:
            raise NoDemonstration("ENVIRONMENT", f"the reply has {len(reply)} tokens, there is room for {max_tokens}")
        return Reply(reply, np.zeros(len(reply), np.float32), "stop", [Segment(0, len(reply), "script", at_least)])


async def play_all(settings: config.Config, problems: Sequence[Problem], urls: Sequence[str] = ()) -> None:
    """A line in traces.jsonl for each of the problems that has none yet; urls: of the teacher, none: scripted.

    Raises ConfigError for a teacher with another tokenizer, for traces of another teacher that are there already, and
    as soon as PROMISING problems have not given one trace to keep; EngineError for a teacher that is gone.
    """
    traces_of.begin(settings)
    chat, path = Chat(settings.model_path), settings.folder / "traces.jsonl"
    rollouts = settings.cold_start.rollouts if urls else 1
    there = jsonl.read(path)
    known, kept = {line["id"] for line in there}, sum(len(line["kept"]) for line in there)
    async with open_environment(settings.environment) as make_environment, connections() as http:
        teachers = [Teacher(url, http, settings, chat) for url in urls]
        for teacher in teachers:
            await teacher.check_tokenizer(chat, [problem["question"] for problem in problems[:COMPARED]])
        turns = itertools.cycle(teachers)
        places = asyncio.Semaphore(settings.rollout.concurrency if teachers else AT_ONCE)

        async def trace(problem: Problem, index: int, rollout: int) -> Trajectory | HeadraceError:
            entry = f"trace-{index * rollouts + rollout}"
            r = Reservation.outside_ledger(problem, entry, number=rollout)
            async with places:
                for pause in (*PAUSES_S, None):
                    environment = make_environment()
                    engine = next(turns) if teachers else Script(environment, chat)
                    try:
                        return await play(r, environment, engine, chat, settings)
                    except (EpisodeFailed, EngineRefused) as error:
                        return error
                    except EngineError:
                        if pause is None:
                            raise
                    await asyncio.sleep(pause)

        async def record(problem: Problem, rolled: Sequence[asyncio.Task]) -> None:
            nonlocal kept
            line = kept_traces.as_line(problem, [await each for each in rolled], chat, settings.cold_start.failures)
            jsonl.append(path, line)
            known.add(problem["id"])
            kept += len(line["kept"])
            if len(known) >= PROMISING and not kept:
                raise kept_traces.NoneKept
            if len(known) % max(1, len(problems) // 10) == 0:
                log.info("%d of %d problems are done", len(known), len(problems))

        try:
            async with asyncio.TaskGroup() as group:
                for index, problem in enumerate(problems):
                    if problem["id"] not in known:
                        rolled = [group.create_task(trace(problem, index, rollout)) for rollout in range(rollouts)]
                        group.create_task(record(problem, rolled))
        except* HeadraceError as failed:
            error = failed.exceptions[0]
            if isinstance(error, kept_traces.NoneKept):  # nothing is written any more
                error = kept_traces.none_kept(settings, jsonl.read(path))
            raise error from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.traces", description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN.toml")
    parser.add_argument("--engine", action="append", metavar="URL", help="of the teacher; else cold_start.teacher")
    arguments = parser.parse_args()
    settings = config_file.load(arguments.run)
    set_up(settings, "traces")
    if settings.cold_start is None:
        raise ConfigError("traces are for the cold start: add a [cold_start] table to the run's file")
    urls = arguments.engine or settings.cold_start.teacher_urls
    if settings.cold_start.teacher_folder and not urls:
        raise ConfigError("cold_start.teacher is a folder: serve it, and say where with --engine URL")
    settings.folder.mkdir(parents=True, exist_ok=True)
    wait_for(settings.model_path, MODEL_S)
    problems = drawn(settings)
    asyncio.run(play_all(settings, problems, urls))
    kept_traces.finish(settings, problems)


def drawn(settings: config.Config) -> list[Problem]:
    """The cold start's problems in random order."""
    problems = cold_start_problems(settings)
    return random.Random(settings.run.seed).sample(problems, len(problems))


if __name__ == "__main__":
    run(main)
