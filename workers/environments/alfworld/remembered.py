"""What textworld computes again at every step of a game, computed once: the same transcripts in a fraction of the time.

    translation of the PDDL     twice when a game is loaded, twice again at its reset    0.5 s ─▶ once a game
    parse of texts and queries  for each command that could be given, at each step              ─▶ once a text
    copies of the variables     for each symbol of what is said, all the way down               ─▶ one level deep

Nobody changes what the first two give but the symbols of a text, which are copied. One process plays one game at a
time (server.py), so that the functions may be replaced for all of it.
"""

import copy
import functools
from typing import Any

import fast_downward
from textworld.envs.pddl import logic, textgen
from textworld.logic import Rule

GAMES = 512  # up to 4 MB each


@functools.cache  # once
def remember() -> None:
    """From now on, in this process."""
    fast_downward.pddl2sas = functools.lru_cache(2 * GAMES)(fast_downward.pddl2sas)
    logic._parse_and_convert = functools.lru_cache(GAMES)(logic._parse_and_convert)
    Rule.parse_conjunctive_query = functools.cache(Rule.parse_conjunctive_query)
    symbols = functools.cache(textgen._parse_and_convert)
    textgen._parse_and_convert = lambda *text, **how: copy.deepcopy(symbols(*text, **how))
    textgen.copy_context = shallow


def shallow(context: dict[str, Any]) -> dict[str, Any]:
    return context | {"variables": dict(context["variables"]), "mapping": dict(context["mapping"])}
