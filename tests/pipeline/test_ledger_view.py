"""What a reader sees, in the client and by redis-cli alone."""

import pytest
import redis

from pipeline import evals, keys
from pipeline.coordinator import Coordinator, Refused
from pipeline.errors import ConfigError
from tests.fixtures_ledger import trajectory


def test_the_status_counts_everything_and_says_what_the_run_waits_for(new_run, names):
    d = new_run(prompts=10, batch_size=2, max_staleness=1)
    assert d.c.status()["waiting"] == "buffer 0: 0 of 2 occupied, 0 in flight; no worker has reserved"
    r = d.reserve()
    assert "0 of 2 occupied, 1 in flight; most urgent: prompt" in d.c.status()["waiting"]
    d.c.release(r.entry, "cancelled")
    d.fill_head()
    assert d.c.status()["waiting"] == ""
    d.c.consume(names.trainer, 0)
    assert d.c.status()["waiting"] == "update 0 is being made: version 1 is not published yet"
    d.publish()
    status = d.c.status()
    assert (status["version"], status["head"], status["event"], status["placed"], status["consumed"]) == (1, 1, 1, 2, 2)
    assert status["staleness"] == {0: 2}
    assert status["released"] == {"cancelled": 1}
    assert status["prompts"] == {"idle": 10, "in flight": 0, "quarantined": 0}
    assert [(e["name"], e["version"], e["state"]) for e in status["engines"]] == [(names.engine, 1, "ready")]
    assert [w["name"] for w in status["workers"]] == [names.worker]


def test_the_status_says_whether_the_trainer_waits_and_how_much_was_filtered_in_a_row(new_run, names):
    d = new_run(batch_size=1, group_size=2, filter_metric="score")
    d.finish(d.reserve(), outcome=[1.0, 1.0])
    status = d.c.status()
    assert (status["awaited"], status["filtered"], status["consecutive_filtered"]) == (False, 1, 1)
    d.c.consume(names.trainer, 0)
    assert d.c.status()["awaited"]
    d.finish(d.reserve(), outcome=[1.0, 0.0])
    d.c.consume(names.trainer, 0)
    status = d.c.status()
    assert (status["awaited"], status["filtered"], status["consecutive_filtered"]) == (False, 1, 0)


def test_a_run_without_engines_or_trainer_says_so(client, run):
    c = Coordinator.create(client, run, {"batch_size": 1})
    assert c.status()["waiting"].endswith("no engine is ready")
    c.add_prompts([{"id": "p0"}])
    c.register_engine("e0", 0)
    r = c.reserve("w0", "e0")
    c.occupy(r.entry, [trajectory(r)])
    assert c.status()["waiting"] == "no trainer has joined"


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (lambda d: d.c.pause("maintenance"), "buffer 0: 0 of 2 occupied, 0 in flight, paused: maintenance; no worker"),
        (lambda d: d.c.stop("enough"), "stopped: enough"),
        (lambda d: d.c.mark_engine("e0", "loading", "version 1"), "0 in flight; no engine is ready"),
        (lambda d: d.finish(d.reserve()), "buffer 0: 1 of 2 occupied, 0 in flight; no worker has reserved"),
        (lambda d: evals.request(d.client, d.run, 0), "the engines stay at version 0 until it is evaluated"),
        (
            lambda d: [d.reserve() for _ in range(2)],
            "2 in flight; memory is used up until the trainer's next checkpoint",
        ),
    ],
)
def test_whatever_holds_the_run_up_is_said(new_run, happens, said):
    d = new_run(batch_size=2, max_staleness=1, max_trajectory_bytes=1000, byte_budget=2000)
    happens(d)
    assert said in d.c.status()["waiting"]


def test_placeholders_are_drawn_as_late_as_their_deadlines_allow(new_run):
    d = new_run(batch_size=4, max_staleness=2)
    for _ in range(6):
        d.reserve()
    views = d.c.buffers()
    assert [(b.state, b.reserved, b.due, b.over) for b in views] == [
        ("PENDING", 0, 0, 0),
        ("PENDING", 2, 0, 0),
        ("STUCK", 4, 6, 0),
    ]


def test_with_redundancy_those_for_whom_no_place_is_left_are_shown_as_over(new_run):
    """η = 2, B = 1, B' = 2: six are due 2; one finishes, and buffer 0 has no place any more for the one drawn there."""
    d = new_run(batch_size=1, buffer_capacity=2, max_staleness=2)
    taken = [d.reserve() for _ in range(6)]
    assert [(b.state, b.reserved, b.over) for b in d.c.buffers()] == [("STUCK", 2, 0)] * 3
    d.finish(taken[0])
    assert [(b.state, b.reserved, b.due, b.over) for b in d.c.buffers()] == [
        ("READY_WITH_CAPACITY", 0, 0, 1),
        ("STUCK", 2, 0, 0),
        ("STUCK", 2, 5, 0),
    ]
    assert d.reserve() == Refused("FULL")
    d.c.release(taken[1].entry, "cancelled")
    assert [b.over for b in d.c.buffers()] == [0, 0, 0]


def test_pending_somewhere_is_the_same_as_admitted(new_run):
    d = new_run(batch_size=3, max_staleness=1)
    for _ in range(7):
        pending = any(b.state == "PENDING" for b in d.c.buffers())
        assert pending == (getattr(d.reserve(), "version", None) == 0)


def test_a_person_reads_a_buffer_with_redis_cli(new_run):
    d = new_run()
    d.finish(d.reserve())
    found = d.client.hgetall(keys.buffer(d.run, 0))
    assert found == {
        b"state": b"PENDING",
        b"occupied": b"1",
        b"reserved": b"0",
        b"due": b"0",
        b"over": b"0",
        b"capacity": b"4",
        b"target": b"4",
        b"min_version": b"0",
    }


def test_a_client_that_decodes_responses_is_refused(run):
    with pytest.raises(ConfigError, match="decode_responses"):
        Coordinator(redis.Redis(decode_responses=True), run)
