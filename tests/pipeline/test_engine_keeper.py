"""One engine of a run: what it must prove, what becomes of its requests, how it is found dead."""

import dataclasses

import pytest

from pipeline import engines as engines_module
from pipeline.weights import write_manifest
from tests.pipeline.conftest import serve, shown


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


def test_weights_that_were_changed_since_are_named_and_never_loaded(ledger, fleet, weights, scripted_engine, tmp_path):
    one, version_0 = scripted_engine(), weights(0)
    file = tmp_path / version_0.path / "config.json"
    file.write_text("{}")
    manifest = write_manifest(file.parent, 0, range(32), [-1.0] * 31, "float32")
    file.write_text("{ }")
    assert not fleet(one).follow(dataclasses.replace(version_0, digest=manifest.digest))
    assert one.loads == [] and shown(ledger) == {"engine-0": ("failed", -1)}
    assert "config.json: its contents are not those that were published" in ledger.engines()[0].reason


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


def test_an_engine_loads_what_was_published_while_it_drained(ledger, fleet, weights, scripted_engine, short_passes):
    one, version_0, version_1, version_2 = scripted_engine(), weights(0), weights(1), weights(2)
    engines = fleet(one, load_timeout_s=10)
    assert serve(engines, version_0)
    one.free.clear()
    assert not engines.follow(version_1) and not engines.follow(version_2)
    assert engines.versions == {0, 1}, "version 1 may still be what it loads"
    one.free.set()
    assert serve(engines, version_2) and one.loads == [0, 2]


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


def test_an_engine_that_its_coordinator_left_paused_goes_on(ledger, fleet, weights, scripted_engine):
    one, version_0 = scripted_engine(), weights(0)
    assert serve(fleet(one, policy="retract"), version_0)
    one.calls.clear()
    assert serve(fleet(one, policy="retract"), version_0) and one.calls == ["continue_generation"]
