"""A run begins once, with settings that can work."""

import pytest

from pipeline import keys
from pipeline.coordinator import Coordinator
from pipeline.errors import ConfigError, OtherSchema, OtherSettings, UnknownRun
from pipeline.ledger_view import LedgerView

NAN = float("nan")


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
        ({"batch_size": None}, "batch_size: expected int, found None"),
        ({"batch_size": 0}, "batch_size: expected at least 1, found 0"),
        ({"batch_size": -4}, "batch_size: expected at least 1, found -4"),
        ({"batch_size": "4"}, "batch_size: expected int, found '4'"),
        ({"batch_size": 4.0}, "batch_size: expected int, found 4.0"),
        ({"batch_size": NAN}, "batch_size: expected int, found nan"),
        ({"batch_size": True}, "batch_size: expected int, found True"),
        ({"batch_size": [4]}, r"batch_size: expected int, found \[4\]"),
        ({"batch_size": 2**53}, "batch_size: expected a number below 2.*53"),
        ({"max_staleness": -1}, "at least 0"),
        ({"max_staleness": 1.5}, "max_staleness: expected int, found 1.5"),
        ({"max_staleness": 0, "publish_every": 2}, r"max_staleness 0 < publish_every - 1 = 1: .* could never move"),
        ({"max_staleness": 2, "publish_every": 4}, r"max_staleness 2 < publish_every - 1 = 3"),
        ({"publish_every": 0}, "publish_every: expected at least 1, found 0"),
        ({"buffer_capacity": 3}, "buffer_capacity 3 < batch_size 4: raise it"),
        ({"buffer_capacity": 0}, "buffer_capacity 0 < batch_size 4"),
        ({"buffer_capacity": 4.5}, "buffer_capacity: expected int.*found 4.5"),
        ({"group_size": 0}, "group_size: expected at least 1"),
        ({"group_size": 4, "group_launch": 3}, "group_launch 3 < group_size 4: raise it"),
        ({"group_launch": 0}, "group_launch 0 < group_size 1"),
        ({"group_launch": "2"}, "group_launch: expected int.*found '2'"),
        ({"max_trajectory_bytes": 100, "byte_budget": 399}, "byte_budget 399 .* expected at least 400 bytes"),
        ({"max_trajectory_bytes": 100, "byte_budget": 499, "buffer_capacity": 5}, "expected at least 500 bytes"),
        ({"max_trajectory_bytes": 100, "byte_budget": 1799, "buffer_capacity": 6, "group_launch": 3}, "at least 1800"),
        ({"max_trajectory_bytes": 0}, "max_trajectory_bytes: expected at least 1"),
        ({"byte_budget": -1}, "byte_budget: expected at least 0"),
        ({"byte_budget": 1e9}, "byte_budget: expected int, found 1000000000.0"),
        ({"rho": 0.0}, r"rho: expected a number in \(0, 1\], found 0.0"),
        ({"rho": 1.01}, "rho"),
        ({"rho": NAN}, "rho: expected a number .* found nan"),
        ({"sampler": "best"}, "sampler: expected .* found 'best'"),
        ({"sampler": None}, "sampler: expected str, found None"),
        ({"evidence": "later"}, 'evidence: expected "event" or "receipt", found \'later\''),
        ({"lease_s": 0}, "lease_s: expected a millisecond at least, found 0"),
        ({"lease_s": 1e-9}, "lease_s: expected a millisecond at least"),
        ({"lease_s": NAN}, "lease_s: expected a number .* found nan"),
        ({"max_age_s": float("inf")}, "max_age_s: expected a number .* found inf"),
        ({"max_age_s": -5}, "max_age_s: expected a millisecond at least, found -5"),
        ({"max_attempts": 0}, "max_attempts: expected at least 1"),
        ({"max_lost": 0}, "max_lost: expected at least 1"),
        ({"max_consecutive_failures": 0}, "max_consecutive_failures: expected at least 1"),
        ({"max_consecutive_filtered": 0}, "max_consecutive_filtered: expected at least 1"),
        ({"filter_metric": "best"}, "filter_metric: expected one of score, acc, .* found 'best'"),
        ({"filter_metric": ""}, "filter_metric: expected one of .* found ''"),
        ({"proactive": "abort"}, "proactive: expected .* found 'abort'"),
        ({"proactive": "retry", "proactive_threshold": None}, "proactive_threshold: expected int, found None"),
        ({"proactive": "retry", "proactive_threshold": 0}, "proactive_threshold: expected at least 1"),
        ({"proactive": "retry", "proactive_patience_s": 0}, "proactive_patience_s: expected a millisecond at least"),
        ({"proactive": "truncate", "proactive_patience_s": NAN}, "proactive_patience_s: .* found nan"),
        ({"btch_size": 4}, "found also btch_size: remove them"),
        ({3: 4}, "found also 3: remove them"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_written(client, run, settings, message):
    with pytest.raises(ConfigError, match=message) as refused:
        Coordinator.create(client, run, {"batch_size": 4} | settings)
    assert refused.value.code == "CONFIG"
    assert not list(client.scan_iter(f"hr:{{{run}}}*"))


def test_settings_without_a_batch_size_are_refused(client, run):
    with pytest.raises(ConfigError, match="batch_size is missing"):
        Coordinator.create(client, run, {"max_staleness": 1})
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


def test_a_run_that_another_headrace_made_is_refused_by_all_who_would_work_on_it(client, run):
    settings = {"batch_size": 4, "digest": "aa"}
    Coordinator.create(client, run, settings)
    client.hset(keys.run(run), "schema", 1)
    client.hdel(keys.run(run), "rules")
    told = f"'{run}' was made by another headrace, which keeps it in schema 1, this one in {keys.SCHEMA}: choose"
    with pytest.raises(OtherSchema, match=told):
        Coordinator.create(client, run, settings)
    with pytest.raises(OtherSchema, match=told):
        LedgerView(client, run).wait_for_run("aa", 5)
    with pytest.raises(OtherSchema, match=told):
        Coordinator.create(client, run, settings | {"digest": "bb"})


def test_the_wait_for_the_run_has_an_end(client, run):
    view = LedgerView(client, run)
    with pytest.raises(UnknownRun):
        view.wait_for_run("aa", 0)
    assert not view.wait_for_run("aa", 60, stop=lambda: True)
