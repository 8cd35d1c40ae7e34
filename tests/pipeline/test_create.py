"""A run begins once, with settings that can work."""

import pytest

from pipeline.coordinator import Coordinator
from pipeline.errors import ConfigError, OtherSettings, UnknownRun
from pipeline.ledger_view import LedgerView


def test_the_same_settings_find_the_run_again(client, run):
    Coordinator.create(client, run, {"batch_size": 4}).add_prompts([{"id": "p"}])
    again = Coordinator.create(client, run, {"batch_size": 4})
    assert again.status()["prompts"]["idle"] == 1


def test_other_settings_are_refused_and_named(client, run):
    Coordinator.create(client, run, {"batch_size": 4})
    with pytest.raises(OtherSettings, match=r"batch_size: 4 → 5"):
        Coordinator.create(client, run, {"batch_size": 5})


def test_another_digest_is_another_config_even_with_equal_buffers(client, run):
    Coordinator.create(client, run, {"batch_size": 4, "digest": "aa"})
    with pytest.raises(OtherSettings, match="outside of the ledger"):
        Coordinator.create(client, run, {"batch_size": 4, "digest": "bb"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_staleness": 1}, "batch_size is missing"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 4, "max_staleness": -1}, "at least 0"),
        ({"batch_size": 4, "max_staleness": 0, "publish_every": 2}, "could never move"),
        ({"batch_size": 4, "buffer_capacity": 3}, "buffer_capacity"),
        ({"batch_size": 4, "group_size": 4, "group_launch": 3}, "group_launch"),
        ({"batch_size": 4, "max_trajectory_bytes": 100, "byte_budget": 399}, "at least 400 bytes"),
        ({"batch_size": 4, "rho": 0.0}, "rho"),
        ({"batch_size": 4, "sampler": "best"}, "sampler"),
        ({"batch_size": 4, "lease_s": 0}, "lease_s"),
        ({"batch_size": 4, "btch_size": 4}, "btch_size"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_written(client, run, settings, message):
    with pytest.raises(ConfigError, match=message):
        Coordinator.create(client, run, settings)
    assert not list(client.scan_iter(f"hr:{{{run}}}*"))


def test_a_run_that_is_not_there_is_named(client, run):
    with pytest.raises(UnknownRun, match=run):
        Coordinator(client, run).reserve("w", "e")
    with pytest.raises(UnknownRun, match=run):
        Coordinator(client, run).status()


def test_known_prompts_stay_as_they_are(client, run):
    c = Coordinator.create(client, run, {"batch_size": 4})
    assert c.add_prompts([{"id": "a", "payload": b"1"}, {"id": "b"}]) == 2
    assert c.add_prompts([{"id": "a", "payload": b"2", "alpha": 1.0}, {"id": "c"}]) == 1
    assert client.hget(f"hr:{{{run}}}:prompt:a", "payload") == b"1"
    assert [p["value"] for p in c.prompts()] == [0.5, 0.5, 0.5]


def test_evidence_that_is_no_number_above_zero_is_refused(client, run):
    c = Coordinator.create(client, run, {"batch_size": 4})
    for alpha in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="alpha"):
            c.add_prompts([{"id": "a", "alpha": alpha}])


def test_thousands_of_prompts_enter_in_one_call(client, run):
    c = Coordinator.create(client, run, {"batch_size": 4})
    assert c.add_prompts({"id": f"p{i}"} for i in range(1201)) == 1201
    assert c.status()["prompts"]["idle"] == 1201


def test_who_comes_before_the_coordinator_waits_for_the_run(client, run):
    view, said = LedgerView(client, run), []

    def create(sentence):
        said.append(sentence)
        Coordinator.create(client, run, {"batch_size": 4, "digest": "aa"})

    assert view.wait_for_run("aa", 5, waiting=create)
    assert said == [f"run {run} to be created by the coordinator"]
    with pytest.raises(ConfigError, match="has settings aa, this process was given bb"):
        view.wait_for_run("bb", 5)


def test_the_wait_for_the_run_has_an_end(client, run):
    view = LedgerView(client, run)
    with pytest.raises(UnknownRun):
        view.wait_for_run("aa", 0)
    assert not view.wait_for_run("aa", 60, stop=lambda: True)
