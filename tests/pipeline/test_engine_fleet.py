"""All engines of a run: who loads, who serves meanwhile, who joins and leaves."""

import pytest

from pipeline import reports
from tests.pipeline.conftest import serve, shown


def test_every_engine_is_brought_to_the_version_and_then_routed_to(ledger, fleet, weights, scripted_engine):
    one, two = scripted_engine(), scripted_engine()
    engines = fleet(one, two)
    assert shown(ledger) == {"engine-0": ("starting", -1), "engine-1": ("starting", -1)}
    for version in (0, 1):
        published = weights(version)
        assert any(engines.follow(published) for _ in range(3))
        assert shown(ledger) == {"engine-0": ("ready", version), "engine-1": ("ready", version)}
    assert one.loads == two.loads == [0, 1] and engines.versions == {1}
    assert [engine.url for engine in ledger.engines()] == [one.url, two.url]


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        ("/update_weights_from_disk", (200, {"success": True}), "serves 'base', expected"),
        ("/update_weights_from_disk", (500, {}), "answered 500"),
        ("/update_weights_from_disk", 5, "no answer within 0.3 s"),
        ("/model_info", (503, {}), "answered 503"),
    ],
)
def test_an_engine_that_fails_is_not_routed_to_and_does_not_hold_up_the_others(
    ledger, fleet, weights, scripted_engine, path, answer, reason
):
    bad, good, version_0 = scripted_engine(), scripted_engine(), weights(0)
    bad.faults[path] = answer
    engines = fleet(bad, good)
    assert engines.follow(version_0) and str(engines) == "engine-0 -, engine-1 v0"
    assert shown(ledger) == {"engine-0": ("failed", -1), "engine-1": ("ready", 0)}
    assert reason in ledger.engines()[0].reason and reason in engines.problems[0]
    bad.faults.clear()
    engines.keepers["engine-0"].retry_at = 0
    assert engines.follow(version_0) and shown(ledger)["engine-0"] == ("ready", 0)


def test_an_engine_that_moved_is_not_routed_to_before_it_proves_itself(ledger, fleet, weights, scripted_engine):
    version_0 = weights(0)
    fleet(scripted_engine(), scripted_engine()).follow(version_0)
    moved = scripted_engine()
    engines = fleet(moved)
    assert [(e.name, e.state, e.url) for e in ledger.engines()] == [("engine-0", "starting", moved.url)]
    assert engines.follow(version_0) and shown(ledger) == {"engine-0": ("ready", 0)}


def test_while_one_engine_drains_the_others_serve_the_old_version(
    ledger, fleet, weights, scripted_engine, short_passes
):
    one, two, version_0, version_1 = scripted_engine(), scripted_engine(), weights(0), weights(1)
    engines = fleet(one, two, load_timeout_s=10)
    assert serve(engines, version_0)
    for engine in (one, two):
        engine.free.clear()
    for _ in range(3):
        assert not engines.follow(version_1)
    assert sorted(shown(ledger).values()) == [("draining", 0), ("ready", 0)]
    for engine in (one, two):
        engine.free.set()
    assert serve(engines, version_1) and one.loads == two.loads == [0, 1]


def test_the_engine_with_the_oldest_weights_is_the_next_to_load(ledger, fleet, weights, scripted_engine, short_passes):
    one, two, version_0, version_1, version_2 = scripted_engine(), scripted_engine(), weights(0), weights(1), weights(2)
    engines = fleet(one, two, load_timeout_s=10, policy="retract")
    assert serve(engines, version_0)
    since = ledger.last_event()
    one.free.clear()
    assert not engines.follow(version_1)
    one.free.set()
    assert serve(engines, version_2)
    events = [event.fields for event in ledger.wait(since, 0) if event.kind == "engine"]
    turns = [event["engine"] for event in events if event["state"] == "loading"]
    assert turns == ["engine-0", "engine-1", "engine-0"] and two.loads == [0, 2]


def test_at_once_means_all_engines_together(ledger, fleet, weights, scripted_engine, short_passes):
    one, two, version_0, version_1 = scripted_engine(), scripted_engine(), weights(0), weights(1)
    engines = fleet(one, two, load_timeout_s=10, at_once=True)
    assert engines.follow(version_0)
    for engine in (one, two):
        engine.free.clear()
    assert not engines.follow(version_1)
    assert set(shown(ledger).values()) == {("draining", 0)}
    for engine in (one, two):
        engine.free.set()
    assert serve(engines, version_1)


def test_an_engine_that_drains_or_hangs_does_not_keep_the_others_from_being_looked_after(
    ledger, fleet, weights, scripted_engine, short_passes, clock
):
    one, two, version_0, version_1 = scripted_engine(), scripted_engine(), weights(0), weights(1)
    engines = fleet(one, two, load_timeout_s=10)
    assert serve(engines, version_0)
    for engine in (one, two):
        engine.free.clear()
    engines.follow(version_1)
    busy, other = (one, two) if shown(ledger)["engine-0"] == ("draining", 0) else (two, one)
    other.faults["/generate"] = (500, {"error": "the scheduler is dead"})
    clock[0] += 2.1
    engines.follow(version_1)
    assert sorted(state for state, _ in shown(ledger).values()) == ["draining", "failed"]
    assert "the scheduler is dead" in engines.problems[0]
    busy.free.set()


def test_engines_join_and_leave_while_the_others_serve(ledger, fleet, weights, scripted_engine):
    one, two, version_0 = scripted_engine(), scripted_engine(), weights(0)
    engines = fleet(one)
    assert serve(engines, version_0)
    added = reports.add_engine(ledger, two.url)["engine"]
    assert shown(ledger) == {"engine-0": ("ready", 0), added: ("starting", -1)}
    assert serve(engines, version_0) and shown(ledger) == {"engine-0": ("ready", 0), added: ("ready", 0)}
    reports.remove_engine(ledger, "engine-0")
    assert engines.follow(version_0) and shown(ledger) == {added: ("ready", 0)}
    assert serve(fleet(one), version_0) and shown(ledger) == {added: ("ready", 0)}, "a new coordinator knows it too"


def test_an_engine_that_leaves_while_it_loads_stays_away(ledger, fleet, weights, scripted_engine, short_passes):
    one, two, version_0 = scripted_engine(), scripted_engine(), weights(0)
    one.free.clear()
    engines = fleet(one, two, load_timeout_s=10)
    assert not engines.follow(version_0)
    reports.remove_engine(ledger, "engine-0")
    one.free.set()
    engines.finish(5)
    assert engines.follow(version_0) and shown(ledger) == {"engine-1": ("ready", 0)}
