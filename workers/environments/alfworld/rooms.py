"""A room of ALFWorld with a task in it, drawn from a seed: real AI2-THOR layouts, objects where they may be.

    scene 420 ──▶ its receptacles, all or a few ──▶ Receptacle("Toilet", "Toilet_bar__minus_02_dot_36…")
    task type ──▶ what to take and where to bring it, of what this scene has
              ──▶ objects on receptacles that can contain them, none of them where the task wants it already

problem.py writes it as PDDL. Scenes, their layouts and what can contain, heat, cool or clean what are alfworld's own
tables; its training scenes are ours for training, its test scenes for what is held out.
"""

import functools
import json
import random
from dataclasses import dataclass, field
from importlib.resources import files

from alfworld.gen import constants
from alfworld.gen.goal_library import gdict

LAYOUTS = files("alfworld.gen") / "layouts"
LAMP = "DeskLamp"  # stands on a receptacle; a floor lamp is in none, and the goal asks for that
# task type -> what its object must allow, and the receptacle that does it
TREATMENTS = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
PLACE, LOOK, TWO = "pick_and_place_simple", "look_at_obj_in_light", "pick_two_obj_and_place"
CLUTTER = 2  # further objects, a receptacle


@dataclass(frozen=True)
class Receptacle:
    kind: str
    name: str  # AI2-THOR's, with its coordinates
    place: str  # where one stands before it: x, z, rotation and horizon


@dataclass(frozen=True)
class Room:
    """scene: AI2-THOR's number. target: what to take; goal: the kind of receptacle to bring it to, "" for LOOK."""

    task: str
    scene: int
    target: str
    goal: str
    receptacles: list[Receptacle]
    inside: list[tuple[str, Receptacle]] = field(default_factory=list)  # kind of object, and where it is


def drawn(task: str, draw: random.Random, held_out: bool, receptacles: int) -> Room:
    """receptacles: at most so many of the scene's, but all that the task needs."""
    scenes = constants.TEST_SCENE_NUMBERS if held_out else constants.TRAIN_SCENE_NUMBERS
    fitting = [scene for scene in scenes if tasks(scene).get(task)]
    scene = draw.choice(fitting)
    target, goal = draw.choice(tasks(scene)[task])
    there = layout(scene)
    needed = [kind for kind in (goal, TREATMENTS.get(task, ("", ""))[1]) if kind]
    kept = [draw.choice([each for each in there if each.kind == kind]) for kind in dict.fromkeys(needed)]
    sources = [each for each in there if each not in kept and holds(each.kind, target) and each.kind != goal]
    kept.append(draw.choice(sources))
    if task == LOOK and not any(holds(each.kind, LAMP) for each in kept):
        kept.append(draw.choice([each for each in there if each not in kept and holds(each.kind, LAMP)]))
    others = [each for each in there if each not in kept]
    more = min(len(others), max(0, receptacles - len(kept)))
    room = Room(task, scene, target, goal, sorted([*kept, *draw.sample(others, more)], key=lambda each: each.name))
    _furnish(room, draw)
    return room


def holds(receptacle: str, thing: str) -> bool:
    """Whether an object of this kind may be there; lamps stand where books may lie."""
    return ("Book" if thing == LAMP else thing) in constants.VAL_RECEPTACLE_OBJECTS.get(receptacle, ()) and (
        thing != LAMP or receptacle not in constants.OPENABLE_CLASS_SET
    )


@functools.cache
def layout(scene: int) -> list[Receptacle]:
    found = json.loads((LAYOUTS / f"FloorPlan{scene}-openable.json").read_text())
    kinds = {name: name.split("|")[-1] if name.endswith("Basin") else name.split("|")[0] for name in found}
    return [
        Receptacle(kinds[name], name, "loc|" + "|".join(f"{number:g}" for number in place))
        for name, place in sorted(found.items())
        if kinds[name] in constants.VAL_RECEPTACLE_OBJECTS
    ]


@functools.cache
def things(scene: int) -> list[str]:
    """Kinds of objects that this scene has and that can be carried."""
    carried = set().union(*constants.VAL_RECEPTACLE_OBJECTS.values())
    return sorted(_all(scene) & carried)


@functools.cache
def tasks(scene: int) -> dict[str, list[tuple[str, str]]]:
    """For each task type that this scene allows: every target and goal."""
    there = {each.kind for each in layout(scene)}
    kind_of_scene = next(name for name, scenes in constants.SCENE_TYPE.items() if scene in scenes)
    found: dict[str, list[tuple[str, str]]] = {}
    for task in TREATMENTS.keys() | {PLACE, LOOK, TWO}:
        allows, treated_in = TREATMENTS.get(task, ("", ""))
        if kind_of_scene not in constants.GOALS_VALID[task] or (treated_in and treated_in not in there):
            continue
        for thing in things(scene):
            if allows and thing not in constants.VAL_ACTION_OBJECTS[allows]:
                continue
            sources = {kind for kind in there if holds(kind, thing)}
            if task == LOOK:
                lit = any(holds(kind, LAMP) for kind in there)
                goals = [""] if sources and lit and LAMP in _all(scene) else []
            else:
                goals = sorted(goal for goal in sources if sources - {goal, treated_in})
            found.setdefault(task, []).extend((thing, goal) for goal in goals)
    return found


@functools.cache
def _all(scene: int) -> set[str]:
    return set(json.loads((LAYOUTS / f"FloorPlan{scene}-objects.json").read_text()))


def _furnish(room: Room, draw: random.Random) -> None:
    """The task's own objects first: as many as it asks for, then what lies about."""
    treated_in = TREATMENTS.get(room.task, ("", ""))[1]
    sources = [each for each in room.receptacles if holds(each.kind, room.target) and each.kind != room.goal]
    elsewhere = [each for each in sources if each.kind != treated_in]
    for _ in range(2 if room.task == TWO else 1):
        room.inside.append((room.target, draw.choice(elsewhere or sources)))
    if room.task == LOOK:
        room.inside.append((LAMP, draw.choice([each for each in room.receptacles if holds(each.kind, LAMP)])))
    kinds = [thing for thing in things(room.scene) if thing != room.target]
    for receptacle in room.receptacles:
        fitting = [thing for thing in kinds if holds(receptacle.kind, thing)]
        for _ in range(draw.randint(0, CLUTTER) if fitting else 0):
            room.inside.append((draw.choice(fitting), receptacle))


def sentence(room: Room, draw: random.Random) -> str:
    """The task in the words of one of alfworld's own templates."""
    template = draw.choice(gdict[room.task]["templates"])
    return template.format(obj=room.target.lower(), recep=room.goal.lower(), toggle=LAMP.lower())
