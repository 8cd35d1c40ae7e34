"""One game, played through alfworld's own wrappers, with its handcoded expert looking on. In a process of its own:
textworld's PDDL games share state beneath, and their translation swaps sys.argv and sys.stdout.

    prepare(path)               translated and parsed once, for every game that is forked from this process
    Game(path, seed).begin()    ─▶ Seen(text, won, advice)      the room and the task; what the expert would do
    .step("go to toilet 1")     ─▶ Seen(…)                      "Nothing happens." to what is no command

The expert is not the planner: it looks for things, as a policy must, and does not always find them.
"""

import json
import random
from pathlib import Path

import fast_downward
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
from alfworld.agents.expert import HandCodedTWAgent
from textworld.envs.pddl import PddlEnv, logic

from workers.environments.alfworld.games import Seen

WELCOME = "-= Welcome to TextWorld, ALFRED! =-"


def prepare(path: str) -> None:
    """Raises whatever textworld does if it is no game."""
    game = json.loads(Path(path).read_text())
    for optimize in ({}, {"optimize": True}):  # as PddlState calls it: the key of what is remembered
        fast_downward.pddl2sas(game["pddl_domain"], game["pddl_problem"], verbose=False, **optimize)
    logic._parse_and_convert(game["grammar"], rule_name="pddlStart")


class Game:
    def __init__(self, path: str, seed: int):
        random.seed(seed)  # the expert's, which draws where several things would do
        infos = textworld.EnvInfos(won=True, admissible_commands=True, facts=True, policy_commands=False)
        self.env = AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False))
        self.env.load(path)
        self.expert = HandCodedTWAgent(max_steps=10_000)
        self.expert.reset(path)
        self.last = ""

    def begin(self) -> Seen:
        state = self.env.reset()
        self.expert.observe(state.feedback)
        return Seen(state.feedback.replace(WELCOME, "").strip(), False, "look")

    def step(self, command: str) -> Seen:
        state, _, won = self.env.step(command)
        self.last = command.strip()
        return Seen(state.feedback.strip(), won, None if won else self._advice(state))

    def _advice(self, state) -> str | None:
        try:
            command = self.expert.act(state, 0, False, self.last)
        except Exception:  # it raises whatever it likes once a policy has done what it would not have
            return None
        return command if command in state.admissible_commands else "look"
