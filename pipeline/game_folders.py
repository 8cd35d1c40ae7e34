"""A folder of ALFWorld's games as rows: the official ones, or those of `headrace environments alfworld`.

    train/pick_and_place_simple-Laptop-None-Sofa-229/trial_T1_000000/game.tw-pddl
      ──▶ {"id": "pick_and_place_simple-Laptop-None-Sofa-229/trial_T1_000000", "game": "{id}/game.tw-pddl",
           "task": "pick_and_place_simple", "question": "You are in the middle of a room. … put some laptop …"}

Rows come in an order that mixes the task types and is the same everywhere, so that data.size may take a part of them.
A row is the same wherever the folder lies, in Redis and in digests; who plays it asks located() for the game's path.
As in alfworld's loader, games that are not known to be solvable are none, nor those with movable receptacles or slices.
Nothing of alfworld is needed to read them. The question is nearly what the player reads first.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.data_files import Unusable

GAME = "game.tw-pddl"
ROOM = "You are in the middle of a room. Looking quickly around you, you see a"
TASK = re.compile(r"Your task is to: .*?(?=\")")
SAID = re.compile(r'"rhs": "(.*?)"')
OBJECT = re.compile(r"^\s*([a-z]+)_bar_\S* - object", re.IGNORECASE | re.MULTILINE)
RECEPTACLE = re.compile(r"^\s*([a-z]+)_bar_(\S*) - receptacle", re.IGNORECASE | re.MULTILINE)


def holds_games(folder: Path) -> bool:
    return next(folder.rglob(GAME), None) is not None


def rows(folder: Path) -> Iterator[tuple[str, dict[str, Any] | Unusable]]:
    """Each game's place, and its row."""
    found = {path.parent.relative_to(folder).as_posix(): path for path in folder.rglob(GAME)}
    for name in sorted(found, key=_mixed):
        if "movable" in name or "Sliced" in name:
            continue
        try:
            yield name, _row(name, found[name])
        except Unusable as error:
            yield name, error


def _row(name: str, path: Path) -> dict[str, Any]:
    try:
        game = json.loads(path.read_text())
        task = json.loads((path.parent / "traj_data.json").read_text())["task_type"]
        if not game["solvable"]:
            raise Unusable("it is not known to be solvable; `alfworld-generate` finds out")
        said = TASK.search(game["grammar"])[0]
        receptacles = RECEPTACLE.findall(game["pddl_problem"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise error if isinstance(error, Unusable) else Unusable(f"no game: {type(error).__name__}: {error}") from None
    kinds = [kind.lower() + "basin" * rest.lower().endswith("basin") for kind, rest in receptacles]
    things = ", a ".join(f"{kind} {kinds[: at + 1].count(kind)}" for at, kind in enumerate(kinds))
    # The number tells it from others: two trials of one task begin alike, with other things in other places.
    question = f"{ROOM} {things}.\n\n{said} Game {int(_mixed(name)[:8], 16)}."
    return {"id": name, "task": task, "question": question, "game": f"{name}/{GAME}"}


def located(problem: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """With its game's path, if it is a row of this folder, which another machine, or a restored run, has elsewhere."""
    is_row = folder is not None and problem.get("game") == f"{problem.get('id')}/{GAME}"
    return problem | {"game": str(folder / problem["game"])} if is_row else problem


def texts(problem: dict[str, Any]) -> list[str]:
    """What a game can say beside its question: its grammar's sentences, and its things; none of another problem."""
    if "game" not in problem:
        return []
    game = json.loads(Path(problem["game"]).read_text())
    things = ",".join(f" a {kind.lower()} 1" for kind in OBJECT.findall(game["pddl_problem"]))
    return [*SAID.findall(game["grammar"]), things]


def _mixed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
