"""Can a game be won? The planner says how, and the game itself, played anew by those commands, says whether.

Nearly every plan is found within a second or two, and a few, of two objects, not within minutes: the planner has PLAN_S
in a process of its own, and such a game counts as one that cannot be solved. One that fails says nothing of it.
"""

import functools
import json
import os
import resource
import signal
import traceback
from typing import Any

import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
from textworld.envs.pddl import PddlEnv

from pipeline.errors import HeadraceError
from workers.environments.alfworld import remembered

PLAN_S = 30  # of CPU time, not of the clock: the same games on a busy machine


def walkthrough(game: dict[str, Any]) -> list[str]:
    """Commands that win it; [] if there are none, or it is won before the last. game: as game.tw-pddl holds it.

    Raises HeadraceError for a planner that fails.
    """
    commands = _planned(game)
    return commands if commands and wins(game, commands) else []


def wins(game: dict[str, Any], commands: list[str]) -> bool:
    """Whether the last of the commands wins it, and none before."""
    env = _env(plans=False)
    env.load(game)
    env.reset()
    return [env.step(command)[2] for command in commands] == [False] * (len(commands) - 1) + [True]


def _planned(game: dict[str, Any]) -> list[str]:
    planner = _env(plans=True)
    planner.load(game)
    reading, writing = os.pipe()
    if not (child := os.fork()):
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (PLAN_S, PLAN_S + 1))  # SIGXCPU; equal limits send SIGKILL
            os.write(writing, json.dumps(planner.reset()["policy_commands"]).encode())
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, -signal.SIGXCPU):
        raise HeadraceError(
            f"expected the planner to find commands or none, found that it failed with exit code {code}: what it said "
            "stands above; if its install is broken: pip install --force-reinstall 'headrace[alfworld]'"
        )
    return json.loads(said or "[]")


@functools.cache  # one for all games: each that is made keeps 2 MB
def _env(plans: bool) -> AlfredInfos:
    remembered.remember()
    infos = textworld.EnvInfos(won=True, policy_commands=plans)
    return AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False))
