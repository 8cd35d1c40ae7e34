"""`headrace environments alfworld FOLDER`: games of all six task types, made offline in ALFWorld's own folder layout.

    seed, split, number ─▶ rooms.py ─▶ problem.py ─▶ the planner solves it ─▶ its plan wins on replay ─▶ written
                              ▲                                 └──────── not ──────┘
                              └── drawn again ──────────────────────┘

    FOLDER/train/pick_and_place_simple-Laptop-None-Sofa-229/trial_T1_000000/{game.tw-pddl, traj_data.json, …}
    FOLDER/valid_unseen/…       rooms of scenes that train has none of: for [eval.data]

The same arguments make the same games everywhere; by default the 128 canonical ones, and 64 held out. A split appears
whole or not at all.
"""

import argparse
import json
import os
import random
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.environment_rules import check_alfworld
from pipeline.errors import ConfigError
from pipeline.program import run

SPLITS = {"train": False, "valid_unseen": True}  # whether its scenes are alfworld's test scenes
KINDS = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
ATTEMPTS = 20  # rooms drawn for a game until one can be solved


class Wanted(NamedTuple):
    """One game. receptacles: at most so many in its room, but all that its task needs."""

    split: str
    number: int
    seed: int
    task: str
    receptacles: int


def generate(folder: Path, counts: dict[str, int], tasks: tuple[str, ...], receptacles: int, seed: int) -> None:
    """counts: of each split. Prints a line for each split and task. Raises ConfigError if a split is there already."""
    for split in counts:
        if (folder / split).exists():
            raise ConfigError(f"{folder / split} is there already: name another folder, or remove it")
    os.environ["ALFWORLD_DATA"] = tempfile.gettempdir()  # where alfworld, when it is imported, would make a folder
    for split, count in counts.items():
        draft = folder / f".{split}-{os.getpid()}"
        lengths = defaultdict(list)
        try:
            for number in range(count):
                wanted = Wanted(split, number, seed, tasks[number % len(tasks)], receptacles)
                place, files = make(wanted)
                _write(draft / place, files)
                lengths[wanted.task].append(len(files["game.tw-pddl"]["walkthrough"]))
            if count:
                draft.rename(folder / split)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        for task, found in lengths.items():
            solved = f"solved in {min(found)} to {max(found)} commands and won on replay"
            print(f"{split}: {len(found)} of {task}, {solved}", flush=True)


def make(wanted: Wanted) -> tuple[str, dict[str, Any]]:
    """Its folder's name, and what the files there hold. Raises ConfigError if no room will do."""
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    from workers.environments.alfworld import problem, proof, rooms

    draw = random.Random(f"{wanted.seed} {wanted.split} {wanted.number}")
    for _ in range(ATTEMPTS):
        room = rooms.drawn(wanted.task, draw, SPLITS[wanted.split], wanted.receptacles)
        toggle = rooms.LAMP if room.task == rooms.LOOK else ""
        trial = f"trial_T{wanted.seed}_{wanted.number:06}"
        sentence = rooms.sentence(room, draw)
        game = {
            "pddl_domain": Path(ALFRED_PDDL_PATH).read_text(),
            "grammar": Path(ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL", sentence),
            "pddl_problem": problem.write(room, trial),
        }
        if walkthrough := proof.walkthrough(game):
            parameters = {"object_target": room.target, "parent_target": room.goal, "toggle_target": toggle}
            data = {
                "task_type": room.task,
                "task_id": trial,
                "pddl_params": parameters | {"mrecep_target": "", "object_sliced": False},
                "scene": {"scene_num": room.scene, "floor_plan": f"FloorPlan{room.scene}"},
                "turk_annotations": {"anns": [{"task_desc": f"{sentence}."}]},
            }
            place = f"{room.task}-{room.target}-None-{room.goal or toggle}-{room.scene}/{trial}"
            return place, {
                "game.tw-pddl": game | {"solvable": True, "walkthrough": walkthrough},
                "traj_data.json": data,
                "initial_state.pddl": game["pddl_problem"],
            }
    raise ConfigError(f"{wanted}: none of {ATTEMPTS} rooms can be solved; allow more receptacles")


def _write(folder: Path, files: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    for name, holds in files.items():
        (folder / name).write_text(holds if isinstance(holds, str) else json.dumps(holds))


def main() -> None:
    parser = argparse.ArgumentParser(prog="headrace environments alfworld", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=128, help="games of alfworld's training scenes (128)")
    parser.add_argument("--held-out", type=int, default=64, help="games of its test scenes (64)")
    parser.add_argument("--task", action="append", choices=KINDS, help="of this type alone; may be given again")
    parser.add_argument(
        "--receptacles", type=int, default=20, help="in a room, at most (20); 4 makes small rooms, for small models"
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    check_alfworld()
    counts = {"train": given.train, "valid_unseen": given.held_out}
    generate(given.folder, counts, tuple(given.task or KINDS), given.receptacles, given.seed)
    keys = {"train": "data.path", "valid_unseen": "eval.data.path"}
    print(", ".join(f'{key} = "{given.folder / split}"' for split, key in keys.items() if counts[split]))


if __name__ == "__main__":
    run(main)
