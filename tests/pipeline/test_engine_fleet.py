import dataclasses

import pytest

from pipeline import engine_keeper, reports
from pipeline import engines as engines_module
from pipeline.coordinator import Coordinator
from pipeline.engine_fleet import EngineFleet
from pipeline.engine_keeper import Publication
from pipeline.ledger_types import Weights
from pipeline.weights import write_manifest


@pytest.fixture
def ledger(client, run):
    return Coordinator.create(client, run, {"batch_size": 2, "max_staleness": 1})


@pytest.fixture
def fleet(ledger, tmp_path, whole_passes):
    """fleet(engine, …) -> EngineFleet of scripted engines, introduced."""

    fleets = []

    def start(*engines, load_timeout_s=0.3, **publication):
        fleet = EngineFleet(
            ledger, [engine.url for engine in engines], Publication(tmp_path, load_timeout_s, **publication)
        )
        fleet.introduce()
        fleets.append(fleet)
        return fleet

    yield start
    for fleet in fleets:
        fleet.finish(10)


@pytest.fixture
def weights(tmp_path):
    """weights(version) -> what the trainer published, lying in tmp_path."""

    def publish(version):
        folder = tmp_path / f"weights/{version}-a"
        folder.mkdir(parents=True)
        manifest = write_manifest(folder, version, range(32), [-1.0 - version] * 31, "float32")
        return Weights(version, f"weights/{version}-a", manifest.digest, version, 0)

    return publish


@pytest.fixture
def clock(monkeypatch):
    """clock[0] is the fleet's time in seconds."""
    now = [1000.0]
    monkeypatch.setattr(engine_keeper.time, "monotonic", lambda: now[0])
    return now


def shown(ledger):
    return {engine.name: (engine.state, engine.version) for engine in ledger.engines()}


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


def test_an_engine_that_serves_the_version_already_is_proved_and_not_loaded_again(
    ledger, fleet, weights, scripted_engine
):
    one, version_0 = scripted_engine(), weights(0)
    assert fleet(one).follow(version_0)
    assert fleet(one).follow(version_0) and one.loads == [0]


def test_an_engine_restarted_on_its_base_weights_is_caught_within_two_seconds(
    ledger, fleet, weights, scripted_engine, clock
):
    one, version_0 = scripted_engine(), weights(0)
    engines = fleet(one)
    engines.follow(version_0)
    one.restart()
    clock[0] += 1.9
    engines.follow(version_0)
    assert one.loads == [0]
    clock[0] += 0.2
    assert engines.follow(version_0) and one.loads == [0, 0] and shown(ledger) == {"engine-0": ("ready", 0)}


def test_an_engine_that_a_worker_distrusts_must_prove_itself_again(ledger, fleet, weights, scripted_engine):
    one, version_0 = scripted_engine(), weights(0)
    engines = fleet(one)
    engines.follow(version_0)
    one.manifest = None  # other weights under the right label
    ledger.mark_engine("engine-0", "stale", "a reply of another version")
    assert engines.follow(version_0) and one.loads == [0, 0] and shown(ledger) == {"engine-0": ("ready", 0)}


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


def test_attempts_on_a_failing_engine_become_rarer(ledger, fleet, weights, scripted_engine, clock):
    bad, version_0, attempts = scripted_engine(), weights(0), []
    bad.faults["/model_info"] = (503, {})
    engines = fleet(bad)
    for _ in range(1000):
        failures = engines.keepers["engine-0"].failures
        assert not engines.follow(version_0)
        if engines.keepers["engine-0"].failures > failures:
            attempts.append(clock[0] - 1000)
        clock[0] += 0.1
    assert attempts[:5] == pytest.approx([0, 0.5, 1.5, 3.5, 7.5], abs=0.25) and len(attempts) < 16


def test_a_folder_that_was_replaced_since_its_publication_is_not_served(
    ledger, fleet, weights, scripted_engine, tmp_path
):
    published = weights(0)
    write_manifest(tmp_path / published.path, 0, range(32), [-7.0] * 31, "float32")
    assert not fleet(scripted_engine()).follow(published)
    assert shown(ledger) == {"engine-0": ("failed", -1)} and "was replaced" in ledger.engines()[0].reason


def test_a_ledger_that_went_back_takes_the_engines_with_it(ledger, fleet, weights, scripted_engine):
    one, versions = scripted_engine(), [weights(0), weights(1)]
    engines = fleet(one)
    for back in (0, 1, 0):
        assert engines.follow(versions[back]) and shown(ledger) == {"engine-0": ("ready", back)}


def test_an_engine_that_moved_is_not_routed_to_before_it_proves_itself(ledger, fleet, weights, scripted_engine):
    version_0 = weights(0)
    fleet(scripted_engine(), scripted_engine()).follow(version_0)
    moved = scripted_engine()
    engines = fleet(moved)
    assert [(e.name, e.state, e.url) for e in ledger.engines()] == [("engine-0", "starting", moved.url)]
    assert engines.follow(version_0) and shown(ledger) == {"engine-0": ("ready", 0)}


def test_weights_that_were_changed_since_are_named_and_never_loaded(ledger, fleet, weights, scripted_engine, tmp_path):
    one, version_0 = scripted_engine(), weights(0)
    file = tmp_path / version_0.path / "config.json"
    file.write_text("{}")
    manifest = write_manifest(file.parent, 0, range(32), [-1.0] * 31, "float32")
    file.write_text("{ }")
    assert not fleet(one).follow(dataclasses.replace(version_0, digest=manifest.digest))
    assert one.loads == [] and shown(ledger) == {"engine-0": ("failed", -1)}
    assert "config.json: its contents are not those that were published" in ledger.engines()[0].reason


def serve(engines, weights):
    """Passes until all engines serve `weights`; True if they do within a few."""
    return any(engines.follow(weights) for _ in range(20))


@pytest.mark.parametrize(
    ("policy", "calls", "state"),
    [
        ("drain", [], "draining"),
        ("interrupt", ["abort_request", "pause_generation"], "loading"),
        ("retract", ["pause_generation"], "loading"),
    ],
)
def test_a_publication_does_to_running_requests_what_its_policy_says(
    ledger, fleet, weights, scripted_engine, short_passes, policy, calls, state
):
    one, version_0, version_1 = scripted_engine(), weights(0), weights(1)
    engines = fleet(one, policy=policy, load_timeout_s=10)
    assert serve(engines, version_0)
    one.calls.clear()
    one.free.clear()
    assert not engines.follow(version_1) and shown(ledger) == {"engine-0": (state, 0)}
    assert engines.versions == {0, 1}, "the folder that it loads must not be deleted meanwhile"
    one.free.set()
    assert serve(engines, version_1) and shown(ledger) == {"engine-0": ("ready", 1)}
    paused = ["continue_generation"] if calls else []
    assert one.calls == ["continue_generation", *calls, "update_weights_from_disk", *paused]


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


def test_an_engine_loads_what_was_published_while_it_drained(ledger, fleet, weights, scripted_engine, short_passes):
    one, version_0, version_1, version_2 = scripted_engine(), weights(0), weights(1), weights(2)
    engines = fleet(one, load_timeout_s=10)
    assert serve(engines, version_0)
    one.free.clear()
    assert not engines.follow(version_1) and not engines.follow(version_2)
    assert engines.versions == {0, 1}, "version 1 may still be what it loads"
    one.free.set()
    assert serve(engines, version_2) and one.loads == [0, 2]


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


def test_a_scheduler_that_is_dead_is_noticed_although_the_server_answers(
    ledger, fleet, weights, scripted_engine, clock
):
    one, version_0 = scripted_engine(), weights(0)
    engines = fleet(one)
    assert serve(engines, version_0)
    one.faults["/generate"] = (200, {"output_ids": [], "meta_info": {"weight_version": one.label}})
    clock[0] += 2.1
    assert not engines.follow(version_0)
    assert shown(ledger) == {"engine-0": ("failed", 0)} and "expected 1 token" in ledger.engines()[0].reason


def test_an_engine_that_is_late_is_not_dead_before_it_is_so_three_times(
    ledger, fleet, weights, scripted_engine, clock, monkeypatch
):
    monkeypatch.setattr(engines_module, "ALIVE_S", 0.1)
    one, version_0 = scripted_engine(), weights(0)
    engines = fleet(one)
    assert serve(engines, version_0)
    one.faults["/generate"] = 5
    for late in (1, 2, 3):
        clock[0] += 2.1
        assert engines.follow(version_0) == (late < 3)
    assert shown(ledger) == {"engine-0": ("failed", 0)} and "no answer within 0.1 s" in ledger.engines()[0].reason


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


def test_an_engine_that_its_coordinator_left_paused_goes_on(ledger, fleet, weights, scripted_engine):
    one, version_0 = scripted_engine(), weights(0)
    assert serve(fleet(one, policy="retract"), version_0)
    one.calls.clear()
    assert serve(fleet(one, policy="retract"), version_0) and one.calls == ["continue_generation"]
