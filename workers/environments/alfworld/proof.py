"""Can a game be won? The planner says how, and the game itself, played anew by those commands, says whether."""

import functools
from typing import Any

import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
from textworld.envs.pddl import PddlEnv

from workers.environments.alfworld import remembered


def walkthrough(game: dict[str, Any]) -> list[str]:
    """Commands that win it; [] if there are none, or it is won before the last. game: as game.tw-pddl holds it."""
    planner = _env(plans=True)
    planner.load(game)
    commands = planner.reset()["policy_commands"]
    return commands if commands and wins(game, commands) else []


def wins(game: dict[str, Any], commands: list[str]) -> bool:
    """Whether the last of the commands wins it, and none before."""
    env = _env(plans=False)
    env.load(game)
    env.reset()
    return [env.step(command)[2] for command in commands] == [False] * (len(commands) - 1) + [True]


@functools.cache  # one for all games: each that is made keeps 2 MB
def _env(plans: bool) -> AlfredInfos:
    remembered.remember()
    infos = textworld.EnvInfos(won=True, policy_commands=plans)
    return AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False))
