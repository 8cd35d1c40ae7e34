"""A room as PDDL, in the form of ALFWorld's initial_state.pddl: names with their coordinates, then what holds at first.

Toilet|-02.36|+00.00|+01.40  ──▶  Toilet_bar__minus_02_dot_36_bar__plus_00_dot_00_bar__plus_01_dot_40
                                  which alfworld's demangler shows as "toilet 1"
"""

from alfworld.gen import constants
from alfworld.gen.goal_library import gdict

from workers.environments.alfworld.rooms import LAMP, Room, holds

MANGLED = {"|": "_bar_", "-": "_minus_", "+": "_plus_", ".": "_dot_"}
PROPERTIES = {"Cleanable": "cleanable", "Heatable": "heatable", "Coolable": "coolable", "Sliceable": "sliceable"}


def write(room: Room, name: str) -> str:
    """The problem in PDDL."""
    objects = {f"{kind}_bar_{number}": (kind, where) for number, (kind, where) in enumerate(room.inside, 1)}
    object_kinds = sorted({kind for kind, _ in objects.values()})
    receptacle_kinds = sorted({each.kind for each in room.receptacles})
    places = sorted({_mangled(each.place) for each in room.receptacles})
    declared = ["agent1 - agent", "loc_bar_start - location"]
    declared += [f"{place} - location" for place in places]
    declared += [f"{_mangled(each.name)} - receptacle" for each in room.receptacles]
    declared += [f"{each} - object" for each in objects]
    declared += [f"{kind}Type - rtype" for kind in receptacle_kinds]
    declared += [f"{kind}Type - otype" for kind in object_kinds]
    facts = ["(= (total-cost) 0)", "(atLocation agent1 loc_bar_start)"]
    for each in room.receptacles:
        facts.append(f"(receptacleAtLocation {_mangled(each.name)} {_mangled(each.place)})")
        facts.append(f"(receptacleType {_mangled(each.name)} {each.kind}Type)")
        if each.kind in constants.OPENABLE_CLASS_SET:
            facts.append(f"(openable {_mangled(each.name)})")
    for each, (kind, where) in objects.items():
        facts.append(f"(objectType {each} {kind}Type)")
        facts.append(f"(inReceptacle {each} {_mangled(where.name)})")
        facts.append(f"(objectAtLocation {each} {_mangled(where.place)})")
        facts.append(f"(toggleable {each})" if kind == LAMP else f"(pickupable {each})")
        if kind in constants.MOVABLE_RECEPTACLES_SET:
            facts.append(f"(isReceptacleObject {each})")
        facts += [f"({said} {each})" for of, said in PROPERTIES.items() if kind in constants.VAL_ACTION_OBJECTS[of]]
    for receptacle in receptacle_kinds:
        facts += [f"(canContain {receptacle}Type {kind}Type)" for kind in object_kinds if holds(receptacle, kind)]
    goal = gdict[room.task]["pddl"].format(obj=room.target, recep=room.goal, toggle=LAMP).replace("#", "-")
    return (
        f"(define (problem {name})\n    (:domain alfred)\n    (:objects\n        "
        + "\n        ".join(declared)
        + "\n    )\n    (:init\n        "
        + "\n        ".join(facts)
        + f"\n    )\n{goal}"
    )


def _mangled(name: str) -> str:
    for character, said in MANGLED.items():
        name = name.replace(character, said)
    return name
