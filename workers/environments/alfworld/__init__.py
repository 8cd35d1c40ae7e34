"""ALFWorld: a household in text, real TextWorld-PDDL games with alfworld's own loader and its six task types.

    user       You are in the middle of a room. Looking quickly around you, you see a sidetable 2, …, and a sofa 1.

               Your task is to: put some laptop on sofa.
    assistant  go to sidetable 2
    user       You arrive at sidetable 2. On the sidetable 2, you see a book 1, and a laptop 1.
    assistant  take laptop 1 from sidetable 2                 "Nothing happens." to what is no command here
    …
    assistant  move laptop 1 to sofa 1                        reward 1; without it, after environment.max_turns, 0

The command is the last line of the reply, after its thought. The conversation keeps everything, as the papers' setting
with full history does; theirs allows 50 interactions: environment.max_turns = 50. `invalid_commands` counts those to
which nothing happened. demonstrate() says what alfworld's handcoded expert would do: it searches, as a policy must; the
planner, which knows where everything is, would teach none of that.

Games come from data.path, a folder of them: the official ones, or those that `headrace environments alfworld` makes
(generate.py). Each is played in a process of its own (games.py).

Options: `instructions`, the system message; empty for none.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pipeline import config
from pipeline.environment_rules import check_alfworld
from workers.environments import Environment, Turn
from workers.environments.alfworld.games import Game, Games
from workers.environments.answers import final

INSTRUCTIONS = """You are in a household and have a task. In each turn write one command, on the last line: look, \
inventory, go to X, open X, close X, take O from X, move O to X, examine X, use O, heat O with X, clean O with X, \
cool O with X, slice O with O. X and O are receptacles and objects with their numbers, such as cabinet 1 and mug 2."""
FOLDER = "set data.path to a folder of ALFWorld's games"
NOTHING = "Nothing happens."


class AlfWorld(Environment):
    def __init__(self, games: Games, instructions: str = INSTRUCTIONS):
        self.games, self.instructions = games, instructions
        self.game: Game | None = None
        self.advice: str | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: config.Environment) -> AsyncIterator[Callable[[], Environment]]:
        check_alfworld()
        games = Games()
        try:
            yield lambda: cls(games, **settings.options)
        finally:
            games.close()

    async def reset(self, prompt: dict[str, Any], seed: int) -> Turn:
        if "game" not in prompt:
            raise ValueError(f"expected a problem with a `game`, found {', '.join(prompt)}: {FOLDER}")
        self.game, seen = await self.games.begin(prompt["game"], seed)
        self.advice = seen.advice
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return Turn([*system, {"role": "user", "content": seen.text}])

    async def step(self, reply: str) -> Turn:
        lines = final(reply).split("\n")
        seen = await self.game.step(next((line.strip() for line in reversed(lines) if line.strip()), ""))
        self.advice = seen.advice
        if seen.won:
            return Turn([], reward=1.0, done=True)
        metrics = {"invalid_commands": 1} if seen.text == NOTHING else {}
        return Turn([{"role": "user", "content": seen.text}], metrics=metrics)

    async def close(self) -> None:
        if self.game is not None:
            self.game.end()

    def demonstrate(self) -> str | None:
        return self.advice
