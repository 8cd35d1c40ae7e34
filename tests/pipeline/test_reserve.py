"""Reserve admits an entry only if it can be trained in time, whatever the others do."""

import random

import hiredis
import pytest
from scipy.stats import chisquare

from advantage import sampling_weight
from pipeline import keys
from pipeline.coordinator import Refused
from tests.fixtures_ledger import Driver


def test_the_answer_names_the_worst_case_buffer_and_carries_the_prompt(new_run):
    d = new_run(max_staleness=2)
    r = d.reserve()
    assert (r.version, r.deadline, r.event, r.value, r.attempt, r.visit) == (0, 2, 0, 0.5, 1, 0)
    assert r.payload == b"question %d" % int(r.prompt[1:])
    assert d.entry(r.entry)["state"] == "RESERVED"
    assert d.c.status()["prompts"] == {"idle": 19, "in flight": 1, "quarantined": 0}


def test_the_same_entry_id_gets_the_same_answer(new_run):
    d = new_run()
    first = d.reserve(entry="x")
    before = d.everything()
    assert d.reserve(entry="x") == first
    assert d.everything() == before
    d.finish(first)
    assert d.reserve(entry="x") == first


def test_an_entry_of_another_worker_is_gone(new_run):
    d = new_run()
    first = d.reserve(entry="x")
    before = d.everything()
    assert d.reserve(entry="x", worker="w1-a") == Refused("GONE")
    assert d.everything() == before
    assert d.reserve(entry="x") == first


def test_an_entry_given_back_cannot_be_reserved_again(new_run):
    d = new_run()
    r = d.reserve(entry="x")
    d.c.release(r.entry, "cancelled")
    assert d.reserve(entry="x") == Refused("GONE")


def test_the_window_holds_two_buffers_at_staleness_one(new_run):
    d = new_run()
    assert len(d.reserve_all()) == 8
    assert d.reserve() == Refused("FULL")


def test_an_engine_that_is_unknown_not_ready_or_ahead_is_refused(new_run, names):
    d = new_run()
    assert d.reserve(engine="nobody") == Refused("ENGINE")
    d.c.mark_engine(names.engine, "failed", "its label is unknown")
    assert d.reserve() == Refused("ENGINE")
    d.c.register_engine(names.engine, 1)
    assert d.reserve() == Refused("ENGINE")
    d.c.register_engine(names.engine, 0)
    assert d.reserve().version == 0
    d.c.remove_engine(names.engine)
    assert d.reserve() == Refused("ENGINE")


def test_an_engine_older_than_the_bound_is_stale(new_run, names):
    d = new_run(max_staleness=1)
    d.c.register_engine("old", 0)
    d.update()
    r = d.reserve(engine="old")
    assert r.deadline == 1
    d.finish(r)
    d.update()
    assert d.reserve(engine="old") == Refused("STALE")


def test_a_pause_a_stop_and_a_drain_close_the_gate(new_run, names):
    d = new_run()
    d.c.pause("maintenance")
    assert d.reserve() == Refused("PAUSED")
    d.c.resume()
    d.c.stop("enough")
    assert d.reserve() == Refused("PAUSED")
    assert d.c.status()["waiting"] == "stopped: enough"
    d.c.resume()
    d.c.drain(names.worker)
    assert d.reserve() == Refused("PAUSED")
    assert d.reserve(worker="another").version == 0


def test_a_prompt_in_flight_is_not_drawn_again(new_run):
    d = new_run(prompts=3)
    taken = d.reserve_all()
    assert len({r.prompt for r in taken}) == 3
    assert d.reserve() == Refused("NO_PROMPT")


def test_the_byte_budget_counts_what_is_stored_and_what_is_in_flight(new_run):
    d = new_run(max_trajectory_bytes=1000, byte_budget=5000)
    first = d.reserve()
    d.finish(first)
    assert len(d.reserve_all()) == 4
    assert d.reserve() == Refused("MEMORY")
    assert d.c.status()["memory_full"]


@pytest.mark.parametrize("case", ["ENGINE", "STALE", "PAUSED", "MEMORY", "FULL", "NO_PROMPT"])
def test_a_refusal_writes_nothing(new_run, names, case):
    d = new_run(prompts=9, max_trajectory_bytes=1000, byte_budget=10_000)
    d.c.register_engine("old", 0)
    engine = names.engine
    if case == "ENGINE":
        engine = "nobody"
    elif case == "STALE":
        engine = "old"
        d.update()
        d.update()
    elif case == "PAUSED":
        d.c.pause()
    elif case == "MEMORY":
        d.fill_head()
        d.reserve_all()
        d.c.consume(names.trainer, 0)
        d.publish()
        d.reserve_all()
    elif case == "FULL":
        d.reserve_all()
    else:
        d.c.publish(names.trainer, 0, "weights/0", "")
        for i in range(9):
            d.client.zrem(keys.prompts(d.run), f"p{i}")
    before = d.everything()
    assert d.reserve(worker="a-new-one", engine=engine) == Refused(case)
    assert d.everything() == before


def test_a_retry_is_first_in_line_and_reads_its_value_afresh(new_run):
    d = new_run()
    r = d.reserve()
    d.c.release(r.entry, "failed")
    again = d.reserve()
    assert (again.prompt, again.attempt) == (r.prompt, 2)
    assert again.entry != r.entry


def test_a_retry_is_first_in_line_even_before_a_prompt_of_an_epoch_long_past(new_run):
    d = new_run(prompts=2, batch_size=2, max_staleness=4, sampler="shuffle")
    left_behind = d.reserve()
    for _ in range(2):  # the other one is two epochs further meanwhile
        d.finish(d.reserve())
    r = d.reserve()
    d.c.release(r.entry, "retry")
    d.c.release(left_behind.entry, "cancelled")
    assert d.reserve().prompt == r.prompt != left_behind.prompt


def test_shuffle_draws_every_prompt_once_an_epoch_and_in_another_order_each_time(new_run):
    d = new_run(prompts=12, batch_size=1, max_staleness=0, sampler="shuffle")
    epochs = []
    for _ in range(3):
        order = []
        for _ in range(12):
            r = d.reserve()
            order.append(r.prompt)
            d.finish(r)
            d.c.consume("t0-a", d.head)
            d.publish()
        epochs.append(order)
    assert all(len(set(order)) == 12 for order in epochs)
    assert len({tuple(order) for order in epochs}) == 3


def test_a_visit_is_numbered_and_what_ended_otherwise_is_none(new_run):
    d = new_run(prompts=1, batch_size=1, max_staleness=0)
    d.c.release(d.reserve().entry, "cancelled")
    visits = []
    for _ in range(3):
        r = d.reserve()
        visits.append(r.visit)
        assert d.reserve(entry=r.entry).visit == r.visit
        d.finish(r)
        d.c.consume("t0-a", d.head)
        d.publish()
    assert visits == [0, 1, 2]


def test_what_is_drawn_does_not_depend_on_how_often_a_worker_was_refused(client, run):
    def prompts(name, refusals):
        d = Driver(client, name, prompts=6, batch_size=2, max_staleness=0, sampler="shuffle")
        drawn = []
        for _ in range(9):
            for r in d.reserve_all():  # which ends with a refusal
                drawn.append(r.prompt)
                d.finish(r)
            for _ in range(refusals):
                assert d.reserve() == Refused("FULL")
            d.c.consume("t0-a", d.head)
            d.publish()
        return drawn

    assert prompts(f"{run}-patient", 0) == prompts(f"{run}-impatient", 3)


def test_draws_are_proportional_to_the_weights(new_run, names, client):
    """Constant weights, immediate return: 100,000 times the real Reserve and Release, a thousand in a round trip."""
    values = [0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98]
    d = new_run(prompts=0, batch_size=1, max_staleness=0)
    d.c.add_prompts({"id": f"p{i}", "alpha": 8 * v, "beta": 8 * (1 - v)} for i, v in enumerate(values))
    fake = type(client).__module__.startswith("fakeredis")
    draws = 2_000 if fake else 100_000
    numbers, sha, fixed = random.Random(7), d.c._ledger.scripts.sha, keys.fixed(d.run)
    counts = dict.fromkeys((f"p{i}" for i in range(len(values))), 0)
    d.c.release(d.c.reserve(names.worker, names.engine).entry, "cancelled")  # from now on Redis knows both scripts
    for start in range(0, draws, 1000):
        commands = []
        for entry in (f"n{n}" for n in range(start, start + 1000)):
            common = (len(fixed) + 1, *fixed, keys.entry(d.run, entry), 1, 0, 0, 0, entry)
            draw = (names.worker, names.engine, repr(numbers.expovariate(1)))
            commands.append(("EVALSHA", sha["reserve"], *common, *draw))
            commands.append(("EVALSHA", sha["release"], *common, "cancelled"))
        for reply in (send_plainly if fake else send_packed)(client, commands)[::2]:
            counts[reply[4].decode()] += 1
    weights = [sampling_weight(v) for v in values]
    expected = [draws * w / sum(weights) for w in weights]
    assert chisquare(list(counts.values()), expected).pvalue > 1e-4


def send_plainly(client, commands):
    return [client.execute_command(*command) for command in commands]


def send_packed(client, commands):
    """As redis-py's pipeline, without its bookkeeping, which takes longer than Redis."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_packed_command([b"".join(map(hiredis.pack_command, commands))])
        return [connection.read_response() for _ in commands]
    finally:
        client.connection_pool.release(connection)
