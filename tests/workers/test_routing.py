from collections import Counter

import pytest

from pipeline.ledger_types import EngineView
from workers.routing import Routes


@pytest.fixture
def routes(settings):
    """routes(versions, in_flight, routing) -> Routes, as after a refresh."""

    def make(versions, in_flight=(), routing="least_loaded"):
        made = Routes(settings(rollout={"routing": routing}), ledger=None, http=None, sampling={})
        made.ready = {f"e{n}": EngineView(f"e{n}", "http://x", v, "ready", "") for n, v in enumerate(versions)}
        made.in_flight = Counter({f"e{n}": count for n, count in enumerate(in_flight)})
        return made

    return make


def test_the_least_loaded_engine_comes_first_and_nobody_moves_for_nothing(routes):
    made = routes([3, 3, 3], [4, 2, 3])
    assert made.order("a") == ["e1", "e2", "e0"]
    assert made.order("a", at="e2") == ["e2", "e1", "e0"]  # its own episode does not count against an engine
    assert made.order("a", at="e0")[0] == "e1"


@pytest.mark.parametrize("routing", ["least_loaded", "sticky"])
def test_an_engine_below_the_entrys_version_is_never_chosen(routes, routing):
    made = routes([2, 4, 3], [0, 9, 9], routing)
    assert set(made.order("a", at_least=3)) == {"e1", "e2"}
    assert made.order("a", at_least=5) == []


def test_sticky_keeps_an_entry_where_it_is_and_spreads_entries(routes):
    made = routes([3, 3, 3, 3], [10, 10, 10, 10], "sticky")
    first = {f"entry-{n}": made.order(f"entry-{n}")[0] for n in range(400)}
    assert all(70 < count < 130 for count in Counter(first.values()).values())
    made.in_flight = Counter(e0=12, e1=14, e2=9, e3=8)
    assert all(made.order(entry, at="e1")[0] == name for entry, name in first.items())
    del made.ready["e3"]  # only its own entries move
    moved = {entry: made.order(entry)[0] for entry in first}
    assert all(moved[entry] == name for entry, name in first.items() if name != "e3")
    assert set(moved.values()) == {"e0", "e1", "e2"}


def test_a_sticky_engine_with_twice_the_mean_load_gets_no_more(routes):
    made = routes([3, 3, 3], [5, 5, 5], "sticky")
    entry = next(f"entry-{n}" for n in range(99) if made.order(f"entry-{n}")[0] == "e0")
    made.in_flight = Counter(e0=21, e1=6, e2=3)
    assert made.order(entry) == ["e2", "e1", "e0"]
    made.in_flight = Counter(e0=18, e1=6, e2=3)
    assert made.order(entry)[0] == "e0"
