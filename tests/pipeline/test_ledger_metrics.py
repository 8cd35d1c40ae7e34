import socket

import pytest
import redis

from pipeline import evals, ports, redis_client
from pipeline.config import Config
from pipeline.ledger_metrics import LedgerMetrics
from pipeline.redis_client import impatient
from tests.fixtures_ledger import Driver


@pytest.fixture
def told(run):
    """A function: {name: {labels' values: value}} of what the ledger of a client tells."""

    def tell(client):
        settings = {"run": {"name": run, "total_steps": 9}, "model": {"path": "m"}, "data": {"path": "d"}}
        families = LedgerMetrics(client, Config.model_validate(settings)).families()
        return {f.name: {tuple(labels.values()): value for labels, value in f.samples} for f in families}

    return tell


def test_the_ledger_is_told_as_it_is(new_run, told, names):
    d = new_run(batch_size=2, max_staleness=1)
    d.update()
    first, second, third = d.reserve(), d.reserve("w0-b"), d.reserve("w1-a")
    d.finish(first)
    d.c.release(second.entry, "cancelled")
    d.c.mark_engine("e1", "loading", "version 1", "http://e1")
    found = told(d.client)
    assert found["headrace_ledger_up"] == {(): 1}
    assert found["headrace_published_version"] == {(): 1} and found["headrace_planned_updates"] == {(): 9}
    assert found["headrace_last_publication_timestamp_seconds"] == {(): d.ms / 1000}
    assert found["headrace_head_buffer"] == {(): 1}
    assert found["headrace_head_state"] == {
        ("PENDING",): 1, ("READY",): 0, ("READY_WITH_CAPACITY",): 0, ("STUCK",): 0, ("CONSUMED",): 0,
    }  # fmt: skip
    assert found["headrace_buffers"][("PENDING",)] == 2 and found["headrace_buffers"][("CONSUMED",)] == 1
    assert found["headrace_head_occupied_entries"] == {(): 1} and found["headrace_head_target_entries"] == {(): 2}
    assert found["headrace_reserved_entries"] == {(): 1}
    assert found["headrace_entries_finished_total"] == {("placed",): 3, ("surplus",): 0, ("filtered",): 0}
    assert found["headrace_entries_released_total"][("cancelled",)] == 1
    assert found["headrace_entries_consumed_total"] == {(): 2}
    assert found["headrace_prompts"] == {("idle",): 19, ("in_flight",): 1, ("quarantined",): 0}
    assert found["headrace_engine_version"] == {(names.engine,): 1, ("e1",): -1}
    ready = {engine for (engine, state), value in found["headrace_engine_state"].items() if value and state == "ready"}
    assert ready == {names.engine} and found["headrace_engine_state"][("e1", "loading")] == 1
    assert found["headrace_workers"] == {(): 2}
    assert found["headrace_worker_reserved_entries"] == {("w0",): 0, ("w1",): 1}, "of both incarnations of w0"
    assert third.deadline >= 1


def test_staleness_is_a_histogram_of_entries_by_their_age(new_run, told):
    d = new_run(batch_size=2, max_staleness=1)
    d.update()
    d.update()
    (histogram,) = told(d.client)["headrace_entry_staleness_updates"].values()
    ages = d.c.status()["staleness"]
    assert histogram.counts == {0: ages.get(0, 0), 1: 4, float("inf"): 4} and histogram.sum == ages.get(1, 0)


def test_how_near_memory_and_failures_are_to_what_stops_the_run(new_run, told):
    d = new_run(batch_size=1, max_trajectory_bytes=1000, byte_budget=5000, max_consecutive_failures=4)
    d.finish(d.reserve())
    d.c.release(d.reserve().entry, "failed")
    d.reserve()
    found = told(d.client)
    assert found["headrace_payload_committed_bytes"] == {(): 2000} and found["headrace_memory_full"] == {(): 0}
    assert found["headrace_payload_budget_bytes"] == {(): 5000}
    assert found["headrace_consecutive_failures_ratio"] == {(): 0.25}
    assert (found["headrace_run_paused"], found["headrace_run_stopped"]) == ({(): 0}, {(): 0})
    d.c.pause()
    assert told(d.client)["headrace_run_paused"] == {(): 1}
    d.c.stop("enough")
    assert told(d.client)["headrace_run_stopped"] == {(): 1}


def test_the_newest_evaluation_that_is_done_is_told(new_run, told, run):
    d = new_run()
    assert "headrace_evaluated_version" not in told(d.client)
    evals.request(d.client, run, 0)
    evals.claim(d.client, run, "w0-a")
    evals.finish(d.client, run, 0, "w0-a", success=0.5, stderr=0.1, trajectories=8, seconds=3.0)
    evals.request(d.client, run, 10)
    found = told(d.client)
    assert found["headrace_evaluated_version"] == {(): 0} and found["headrace_evaluation_success_ratio"] == {(): 0.5}


def test_a_scrape_changes_nothing_and_costs_the_same_however_large_the_run_is(new_run, told, monkeypatch):
    d = new_run(prompts=200, batch_size=8)
    d.fill_head()
    before = d.everything()
    sent = []
    execute = redis.Redis.execute_command
    monkeypatch.setattr(redis.Redis, "execute_command", lambda *a, **k: (sent.append(a[1]), execute(*a, **k))[1])
    told(d.client)
    assert d.everything() == before
    assert len(sent) < 25


def test_a_ledger_that_is_not_there_is_told_as_that(client, told):
    assert told(client) == {"headrace_ledger_up": {(): 0}}
    nobody = redis.Redis(port=ports.free()[0], retry=None)
    assert told(nobody) == {"headrace_ledger_up": {(): 0}}


def test_a_redis_that_hangs_is_told_as_that_at_once(told, monkeypatch):
    """And not after the client's many tries: a scrape that gets no answer tells Prometheus nothing of the ledger."""
    monkeypatch.setattr(redis_client, "SCRAPE_S", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as hangs,
        impatient(f"redis://127.0.0.1:{hangs.getsockname()[1]}/0") as client,
    ):
        assert told(client) == {"headrace_ledger_up": {(): 0}}
        hangs.settimeout(0)
        hangs.accept()[0].close()
        with pytest.raises(BlockingIOError):  # it was tried once
            hangs.accept()


@pytest.mark.parametrize("role", ["coordinator", "viewer"])
def test_who_may_look_may_read_all_of_it(redis_url, redis_users, run, told, role):
    with redis.Redis.from_url(redis_url) as client:
        Driver(client, run, batch_size=2).update()
    found = told(redis_users[role])
    assert found["headrace_ledger_up"] == {(): 1} and found["headrace_redis_memory_bytes"][()] > 0
