"""Can a game be won? The planner says how, and the game itself, played anew by those commands, says whether."""

from typing import Any

import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
from textworld.envs.pddl import PddlEnv

from workers.environments.alfworld import remembered


def walkthrough(game: dict[str, Any]) -> list[str]:
    """Commands that win it; [] if there are none, or it is won before the last. game: as game.tw-pddl holds it."""
    remembered.remember()
    commands = _loaded(game, policy_commands=True).reset()["policy_commands"]
    return commands if commands and wins(game, commands) else []


def wins(game: dict[str, Any], commands: list[str]) -> bool:
    """Whether the last of the commands wins it, and none before."""
    env = _loaded(game)
    env.reset()
    return [env.step(command)[2] for command in commands] == [False] * (len(commands) - 1) + [True]


def _loaded(game: dict[str, Any], **infos: bool) -> AlfredInfos:
    env = AlfredInfos(AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, **infos)), shuffle=False))
    env.load(game)
    return env
