"""The cases that the protocol lists, with its numbers: each of them was a run that stood still, or trained wrongly.

η is max_staleness, B batch_size, B' buffer_capacity, P publish_every; {34: 3 OCCUPIED + 2 due 34} is buffer 34 with
three entries OCCUPIED and two reservations whose deadline it is.
"""

import pytest

from pipeline import keys
from pipeline.coordinator import Placed, Published, Refused
from pipeline.transitions import _Stream


def test_the_example_of_the_page(new_run, names):
    """η = 1, B = 4, head = version = 1: six reserve, all with deadline 2; the first to finish occupies buffer 1."""
    d = new_run(max_staleness=1)
    d.update()
    six = [d.reserve() for _ in range(6)]
    assert [r.deadline for r in six] == [2] * 6
    assert (d.buffer(1).reserved, d.buffer(2).reserved, d.buffer(2).due) == (2, 4, 6)
    assert (d.buffer(1).state, d.buffer(2).state) == ("PENDING", "STUCK")
    assert d.finish(six[0]) == Placed(1)
    assert (d.buffer(1).occupied, d.buffer(1).reserved, d.buffer(2).reserved) == (1, 1, 4)
    assert [d.finish(r) for r in six[1:]] == [Placed(1)] * 3 + [Placed(2)] * 2
    assert (d.buffer(1).state, d.buffer(2).state, d.buffer(1).min_version) == ("READY", "PENDING", 1)


def test_publishing_every_second_update_at_staleness_one_runs_for_ever(new_run, names):
    d = new_run(batch_size=2, max_staleness=1, publish_every=2)
    for event in range(1, 6):
        for _ in range(2):
            d.fill_head()
            batch = d.c.consume(names.trainer, d.head)
            assert all(batch.version - t.version <= 1 for t in d.c.fetch(batch.refs))
        assert d.publish() == Published(event)
        assert d.reserve_all()[0].event == event
        d.ms += 60_000
        d.c.reap()
    assert d.c.status()["version"] == 10


def test_with_redundancy_the_open_place_goes_to_whoever_is_finished_and_the_rest_is_surplus(new_run, names):
    """η = 1, B = 4, B' = 5, head = 34, {34: 3 OCCUPIED + 2 due 34, 35: 4 OCCUPIED + 1 due 35}; due 35 finishes."""
    d = new_run(batch_size=4, buffer_capacity=5, max_staleness=1)
    d.c.join(names.trainer, 33)
    for engine in ("old", names.engine):
        d.c.register_engine(engine, 33)
    for r in [d.reserve() for _ in range(7)]:
        d.finish(r)
    slow = [d.reserve(engine="old") for _ in range(2)]
    d.c.consume(names.trainer, 33)
    d.publish()
    *early, late = [d.reserve() for _ in range(5)]
    assert [d.finish(r) for r in early] == [Placed(35)] * 4
    assert [(b.id, b.occupied, b.due) for b in d.c.buffers() if b.id >= d.head] == [(34, 3, 2), (35, 4, 1)]
    assert d.finish(late) == Placed(34)
    assert d.buffer(34).state == "READY_WITH_CAPACITY"
    assert [d.entry(r.entry)["state"] for r in slow] == ["SURPLUS", "SURPLUS"]
    assert set(d.c.renew(names.worker, [r.entry for r in slow]).cancelled) == {r.entry for r in slow}
    assert d.finish(slow[0]) == Refused("GONE")


def test_nothing_can_be_reserved_between_consume_and_publish_without_staleness(new_run, names):
    d = new_run(max_staleness=0)
    for version in range(3):
        for r in d.reserve_all():
            d.finish(r)
        assert d.reserve() == Refused("FULL")
        assert len(d.c.consume(names.trainer, version).refs) == 4
        assert d.reserve() == Refused("STALE")
        d.publish()
        assert d.buffer(version + 1).state == "PENDING"


def test_with_redundancy_head_does_not_wait_for_a_straggler_while_a_finished_later_entry_fits(new_run, names):
    """η = 2, B = 1, B' = 2: reserve V, V, V-1, V-2, V-2; occupy V; release V-2; occupy V; consume."""
    d = new_run(batch_size=1, buffer_capacity=2, max_staleness=2)
    d.c.register_engine("V-2", 0)
    d.update()
    d.c.register_engine("V-1", 1)
    d.update()
    first, second = d.reserve(), d.reserve()
    slow, slower, slowest = d.reserve(engine="V-1"), d.reserve(engine="V-2"), d.reserve(engine="V-2")
    d.finish(first)
    d.c.release(slower.entry, "failed")
    assert (d.buffer(2).state, d.entry(first.entry)["buffer"]) == ("READY_WITH_CAPACITY", "2")
    assert d.entry(slowest.entry)["state"] == "SURPLUS"
    d.finish(second)
    assert [ref.entry for ref in d.c.consume(names.trainer, 2).refs] == [first.entry]
    assert (d.buffer(3).state, d.entry(second.entry)["buffer"]) == ("READY_WITH_CAPACITY", "3")
    assert d.entry(slow.entry)["state"] == "SURPLUS"


def test_two_clients_of_one_worker_with_ids_out_of_order_lose_nothing(new_run, names):
    d = new_run(batch_size=16, max_staleness=0)
    taken = d.reserve_all()
    clients = [d.new_client(), d.new_client()]
    clients[0]._ledger.streams.clear()
    for i, r in enumerate(taken):
        streams = clients[i % 2]._ledger.streams
        if i > 2:
            streams[names.worker].newest = 2**42 if i % 2 else 2**42 - 100  # behind what the other one sent
        assert d.finish(r, client=clients[i % 2]) == Placed(0)
    assert len(d.stored_payloads()) == 16
    batch = d.c.consume(names.trainer, 0)
    assert [t.entry for t in d.c.fetch(batch.refs)] == [r.entry for r in taken]


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_ids_of_two_groups_that_overlap_leave_no_payload_of_the_one_to_the_other(new_run, names, ahead):
    """Two tasks of one worker take ids in the same milliseconds: XADD refuses some of a group's, and adds the rest."""
    d = new_run(group_size=3)
    first, second = d.new_client(), d.new_client()
    for client, newest in ((first, 2**42), (second, 2**42 + 3 - ahead)):
        client._ledger.streams[names.worker] = _Stream()
        client._ledger.streams[names.worker].newest = newest
    one, other = d.reserve(), d.reserve()
    assert d.finish(one, [0.0, 1.0, 0.0], first) == Placed(0)
    assert d.finish(other, [0.0, 1.0, 0.0], second) == Placed(0)
    d.fill_head([0.0, 1.0, 0.0])
    batch = d.c.consume(names.trainer, 0)
    assert [(t.entry, t.member) for t in d.c.fetch(batch.refs)] == [(ref.entry, ref.member) for ref in batch.refs]
    assert d.stored_payloads() == {(ref.stream, ref.id) for ref in batch.refs}


def test_an_engine_that_restarts_with_its_old_weights_reaches_no_buffer(new_run, names):
    d = new_run(max_staleness=1)
    d.update()
    d.update()
    r = d.reserve()
    assert r.version == 2
    assert d.finish(r, segments=[(1, 1, names.engine, 2), (2, 1, names.engine, 0)]) == Refused("OLD")
    d.c.mark_engine(names.engine, "failed", "it serves its base weights")
    assert d.reserve() == Refused("ENGINE")
    d.c.register_engine(names.engine, 0)
    assert d.reserve() == Refused("STALE")
    assert d.c.release(r.entry, "failed")
    d.c.register_engine(names.engine, 2)
    again = d.reserve()
    assert (again.prompt, again.version, again.attempt) == (r.prompt, 2, 2)
    assert d.finish(again) == Placed(2)


def test_a_filter_that_drops_every_second_of_ten_thousand_groups_does_not_slow_admission(new_run, names, client):
    """η = 0: places that filtered groups kept would be missing in buffer 0, with none left for the last."""
    fake = type(client).__module__.startswith("fakeredis")
    groups, chunk = (200, 100) if fake else (10_000, 1_000)
    d = new_run(prompts=100, batch_size=groups // 2 + 25, max_staleness=0, group_size=2, filter_metric="score")
    scripts, fixed, clock = d.c._ledger.scripts, keys.fixed(d.run), (d.ms, 0, 0, 0)
    r = d.reserve()
    d.finish(r, [1.0, 1.0])  # from now on Redis knows both scripts
    costs = []
    for start in range(0, groups, chunk):
        before = 0 if fake else client.info("cpu")["used_cpu_user"]
        for first in range(start, start + chunk, 50):
            entries = [f"n{n}" for n in range(first, first + 50)]
            with client.pipeline(transaction=False) as pipe:
                for entry in entries:
                    args = (*clock, entry, names.worker, names.engine, "1")
                    pipe.evalsha(scripts.sha["reserve"], len(fixed) + 1, *fixed, keys.entry(d.run, entry), *args)
                prompts = [reply[4] for reply in pipe.execute()]
                for n, (entry, prompt) in enumerate(zip(entries, prompts, strict=True)):
                    touched = [*fixed, keys.entry(d.run, entry), keys.trajectories(d.run, names.worker)]
                    ids = f"{2**42 + 2 * (first + n)}-0 {2**42 + 2 * (first + n) + 1}-0"
                    outcomes = ("1", "1", "1", "1") if n % 2 else ("1", "0", "1", "0")
                    args = (*clock, entry, names.worker, prompt, 0, 0, ids, *outcomes)
                    pipe.evalsha(scripts.sha["occupy"], len(touched), *touched, *args)
                answers = [reply[0] for reply in pipe.execute()]
            assert answers == [b"PLACED", b"FILTERED"] * 25
        costs.append(0 if fake else client.info("cpu")["used_cpu_user"] - before)
    assert (d.buffer(0).occupied, d.buffer(0).due) == (groups // 2, 0)
    assert fake or sum(costs[-3:]) < 1.5 * sum(costs[:3]), costs


def test_fewer_prompts_than_a_batch_still_fill_it(new_run):
    d = new_run(prompts=2, batch_size=5, max_staleness=0)
    for _ in range(3):
        assert len(d.update().refs) == 5
