"""Scripted episodes for the cold start: the environment writes the replies, its verifier keeps the good ones.

    cold-start problems ─▶ play(…, Script) ─▶ outcome 1 ─▶ {run folder}/traces.bin
                             └─ demonstrate() in place of an engine; the tool and the verifier are the real ones

    python -m workers.traces RUN.toml

traces.bin: the trajectories in random order, as pipeline/trajectory_file.py writes them.
"""

import argparse
import asyncio
import logging
import random

import numpy as np

from pipeline import config, config_file, trajectory_file
from pipeline.data import Problem, cold_start_problems
from pipeline.errors import ConfigError
from pipeline.ledger_types import Reservation
from pipeline.program import run
from pipeline.run_folder import wait_for
from pipeline.trajectory import Segment, Trajectory
from workers.chat import Chat
from workers.engine import Reply
from workers.environments import Environment, open_environment
from workers.episode import EpisodeFailed, play

log = logging.getLogger(__name__)

AT_ONCE = 16
MODEL_S = 600  # for the cold start's process to make the tiny model, whose tokenizer is needed here


class NoDemonstration(EpisodeFailed):
    """The environment has no scripted reply to this turn."""


class Script:
    """Stands in for an engine: says what the environment demonstrates. Its log-probs are 0: it never hesitates."""

    def __init__(self, environment: Environment, chat: Chat):
        self.environment, self.chat = environment, chat

    async def generate(self, tokens: list[int], max_tokens: int, at_least: int = 0) -> Reply:
        text = self.environment.demonstrate()
        if text is None:
            raise NoDemonstration("ENVIRONMENT", f"{type(self.environment).__name__}.demonstrate: none for this turn")
        reply = [*self.chat.encode(text), self.chat.end_token]
        if len(reply) > max_tokens:
            raise NoDemonstration("ENVIRONMENT", f"the reply has {len(reply)} tokens, there is room for {max_tokens}")
        return Reply(reply, np.zeros(len(reply), np.float32), "stop", [Segment(0, len(reply), "script", at_least)])


async def traces(settings: config.Config, problems: list[Problem]) -> list[Trajectory]:
    """The verifier-positive demonstrations of the problems, in random order. Raises ConfigError if there are none."""
    chat = Chat(settings.model_path)
    problems = random.Random(settings.run.seed).sample(problems, len(problems))
    places = asyncio.Semaphore(AT_ONCE)
    failures: list[EpisodeFailed] = []

    async with open_environment(settings.environment) as make_environment:

        async def trace(number: int, problem: Problem) -> Trajectory | None:
            async with places:
                environment = make_environment()
                r = Reservation.outside_ledger(problem, f"trace-{number}")
                try:
                    return await play(r, environment, Script(environment, chat), chat, settings)
                except EpisodeFailed as error:
                    failures.append(error)
                    return None

        played = await asyncio.gather(*(trace(number, problem) for number, problem in enumerate(problems)))
    good = [t for t in played if t and t.outcome == 1 and t.finish_reason == "stop"]
    log.info("%d of %d demonstrations are verifier-positive", len(good), len(problems))
    if not good:
        raise ConfigError(
            f"no demonstration of {len(problems)} problems earned its full reward"
            f"{f'; the last failure: {failures[-1]}' if failures else ''}; remove [cold_start], or give "
            f"{settings.environment.name} a demonstrate() for [data]'s tasks"
        )
    return good


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.traces", description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN.toml")
    settings = config_file.load(parser.parse_args().run)
    if settings.cold_start is None:
        raise ConfigError("traces are for the cold start: add a [cold_start] table to the run's file")
    settings.folder.mkdir(parents=True, exist_ok=True)
    wait_for(settings.model_path, MODEL_S)
    trajectory_file.write(settings.folder / "traces.bin", asyncio.run(traces(settings, cold_start_problems(settings))))


if __name__ == "__main__":
    run(main)
