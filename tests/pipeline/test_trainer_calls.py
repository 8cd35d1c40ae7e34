"""Join, Consume, Publish, Checkpoint: one trainer, batches in sequence, nothing lost and nothing trained twice."""

import pytest

from pipeline import keys
from pipeline.coordinator import Published, Refused, Replayed
from pipeline.errors import Fenced, MissingBatch, OutOfSequence, RolledBack


def test_a_batch_is_consumed_once_ready_and_comes_again_in_the_same_order(new_run, names):
    d = new_run(max_staleness=1)
    assert d.c.consume(names.trainer, 0) is None
    d.fill_head()
    peeked = d.c.peek(0)
    batch = d.c.consume(names.trainer, 0)
    assert (batch.version, batch.refs) == (0, peeked)
    d.publish()
    d.fill_head()
    assert d.c.consume(names.trainer, 0) == batch
    assert [t.entry for t in d.c.fetch(batch.refs)] == [ref.entry for ref in batch.refs]
    assert d.buffer(0).state == "CONSUMED"


def test_a_batch_is_ordered_by_version_then_by_finish(new_run, names):
    d = new_run(batch_size=3, max_staleness=2)
    d.c.register_engine("old", 0)
    d.update()
    fresh, old, fresher = d.reserve(), d.reserve(engine="old"), d.reserve()
    for r in (fresher, fresh, old):
        d.finish(r)
    assert [ref.entry for ref in d.c.consume(names.trainer, 1).refs] == [old.entry, fresher.entry, fresh.entry]
    assert d.c.status()["staleness"] == {0: 5, 1: 1}


def test_batches_are_consumed_in_sequence_and_published_in_between(new_run, names):
    d = new_run(max_staleness=1)
    for r in d.reserve_all():
        d.finish(r)
    with pytest.raises(OutOfSequence, match="consume 0 first"):
        d.c.consume(names.trainer, 1)
    with pytest.raises(OutOfSequence):
        d.c.publish(names.trainer, 1, "weights/1", "")
    d.c.consume(names.trainer, 0)
    with pytest.raises(OutOfSequence, match="publish first"):
        d.c.consume(names.trainer, 1)
    with pytest.raises(OutOfSequence):
        d.c.publish(names.trainer, 2, "weights/2", "")
    assert d.c.publish(names.trainer, 1, "weights/1", "") == Published(1)
    assert len(d.c.consume(names.trainer, 1).refs) == 4


def test_the_last_update_of_a_run_may_be_published_early(new_run, names):
    d = new_run(batch_size=2, max_staleness=1, publish_every=2)
    d.fill_head()
    d.c.consume(names.trainer, 0)
    with pytest.raises(OutOfSequence):
        d.c.publish(names.trainer, 1, "weights/1", "")
    assert d.c.publish(names.trainer, 1, "weights/1", "", last=True) == Published(1)


def test_a_version_that_is_out_is_replayed_and_the_first_weights_keep_their_place(new_run, names):
    d = new_run()
    assert d.c.publish(names.trainer, 0, "weights/0-a", "d0") == Published(0)
    d.update()
    assert d.c.publish(names.trainer, 0, "weights/0-b", "other") == Replayed()
    assert d.c.publish(names.trainer, 1, "weights/1-b", "other") == Replayed()
    assert (d.c.weights(0).path, d.c.weights(1).path, d.c.weights(2)) == ("weights/0-a", "weights/1", None)
    assert [w.event for w in d.c.versions().values()] == [0, 1]


def test_a_second_trainer_fences_the_first_for_ever(new_run, names):
    d = new_run()
    d.fill_head()
    d.c.join("t1", 0)
    before = d.everything()
    for call in (
        lambda: d.c.consume(names.trainer, 0),
        lambda: d.c.publish(names.trainer, 0, "weights/0", ""),
        lambda: d.c.checkpoint(names.trainer, 0),
        lambda: d.c.join(names.trainer, 0),
    ):
        with pytest.raises(Fenced, match="t1"):
            call()
    assert d.everything() == before
    assert len(d.c.consume("t1", 0).refs) == 4


def test_a_trainer_must_join_before_it_consumes(client, run):
    from pipeline.coordinator import Coordinator

    c = Coordinator.create(client, run, {"batch_size": 1})
    with pytest.raises(Fenced, match="join first"):
        c.consume("t", 0)


def test_batches_stay_until_the_second_newest_checkpoint_covers_them(new_run, names):
    d = new_run(batch_size=2, max_staleness=0)
    batches = [d.update() for _ in range(4)]
    assert d.c.checkpoint(names.trainer, 2) == 0
    assert d.c.checkpoint(names.trainer, 2) == 0
    assert d.c.consume(names.trainer, 0) == batches[0]
    assert d.c.checkpoint(names.trainer, 4) == 2
    assert d.c.consume(names.trainer, 2) == batches[2]
    with pytest.raises(MissingBatch, match="oldest kept is 2"):
        d.c.consume(names.trainer, 1)
    with pytest.raises(MissingBatch, match="gone"):
        d.c.fetch(batches[0].refs)
    assert len(d.stored_payloads()) == 4
    assert not d.client.exists(keys.buffer(d.run, 1), keys.buffer_entries(d.run, 1))
    with pytest.raises(OutOfSequence):
        d.c.checkpoint(names.trainer, 5)


def test_a_trainer_that_comes_back_at_its_checkpoint_gets_the_same_batches(new_run, names):
    d = new_run(batch_size=2, max_staleness=1)
    batches = [d.update() for _ in range(3)]
    d.c.checkpoint(names.trainer, 1)
    d.fill_head()
    waiting = d.c.peek(3)
    joined = d.c.join("t1", 1, recent=[ref.entry for ref in batches[0].refs])
    assert (joined.version, joined.head, joined.dropped, joined.released) == (3, 3, 0, 0)
    assert [d.c.consume("t1", v) for v in (1, 2)] == batches[1:]
    assert d.c.publish("t1", 2, "weights/2-t1", "") == Replayed()
    assert d.c.consume("t1", 3).refs == waiting


def test_a_trainer_that_finds_its_checkpoint_damaged_may_come_back_at_the_one_before(new_run, names):
    d = new_run(batch_size=2, max_staleness=1)
    batches = [d.update() for _ in range(3)]
    d.c.checkpoint(names.trainer, 1)
    d.c.checkpoint(names.trainer, 2)
    d.c.join("t1", 2)  # it came back once, and found nothing wrong
    assert d.c.join("t2", 1).head == 3
    assert [d.c.consume("t2", v) for v in (1, 2)] == batches[1:]
    assert d.c.checkpoint("t2", 3) == 1
    with pytest.raises(MissingBatch, match=r"as model\.path"):
        d.c.join("t3", 0)
    d.c.join("t3", 3)
    assert d.c.status()["oldest"] == 1


def test_a_checkpoint_that_the_ledger_was_not_told_of_leaves_it_the_batches_since_the_one_before(new_run, names):
    d = new_run(batch_size=2, max_staleness=1)
    for _ in range(3):
        d.update()
    d.c.checkpoint(names.trainer, 1)
    d.c.join("t1", 3)
    assert (d.c.status()["oldest"], d.c.status()["checkpoint"]) == (1, 3)


def test_a_ledger_that_is_behind_moves_to_the_checkpoint_and_trains_nothing_twice(new_run, names):
    d = new_run(batch_size=2, max_staleness=1)
    placed, running = [d.reserve() for _ in range(3)], d.reserve()
    for r in placed:
        d.finish(r)
    joined = d.c.join("t1", 1, recent=[r.entry for r in placed[:2]])
    assert (joined.version, joined.head, joined.event, joined.released) == (1, 1, 1, 1)
    assert d.finish(running) == Refused("GONE")
    assert d.buffer(1).occupied == 1
    assert len(d.stored_payloads()) == 1
    assert d.c.publish("t1", 1, "weights/1-t1", "") == Published(1)
    d.c.register_engine(names.engine, 1)
    assert d.reserve().version == 1


def test_recent_entries_are_dropped_wherever_they_are(new_run, names):
    d = new_run(batch_size=2, max_staleness=1)
    placed, running = [d.reserve() for _ in range(3)], d.reserve()
    for r in placed:
        d.finish(r)
    joined = d.c.join("t1", 0, recent=[placed[0].entry, running.entry, "unknown"])
    assert (joined.dropped, joined.released) == (2, 0)
    assert (d.buffer(0).occupied, d.buffer(1).occupied) == (2, 0)
    assert len(d.stored_payloads()) == 2


def test_joining_twice_changes_nothing(new_run, names):
    d = new_run()
    d.fill_head()
    d.c.join("t1", 0)
    once = d.c.buffers()
    d.c.join("t1", 0)
    assert d.c.buffers() == once
    assert len(d.c.consume("t1", 0).refs) == 4


def test_a_ledger_that_lost_writes_is_noticed_until_the_trainer_joins_again(new_run, names):
    d = new_run(batch_size=2, max_staleness=1)
    d.update()
    r = d.reserve()
    d.client.hset(keys.run(d.run), mapping={"version": 0, "head": 0})
    before = d.everything()
    for call in (
        d.reserve,
        lambda: d.finish(r),
        lambda: d.c.release(r.entry, "failed"),
        lambda: d.c.renew(names.worker, []),
        d.c.reap,
        lambda: d.c.consume(names.trainer, 0),
        lambda: d.c.peek(0),
        lambda: d.c.checkpoint(names.trainer, 0),
    ):
        with pytest.raises(RolledBack, match="join again"):
            call()
    after = d.everything()
    worker_key = keys.worker(d.run, names.worker).encode()
    assert {k: v for k, v in after.items() if k != worker_key} == {k: v for k, v in before.items() if k != worker_key}
    d.ms += 1
    d.c.join("t1", 1)
    d.c.register_engine(names.engine, 1)
    assert d.reserve().version == 1


def test_a_join_ends_the_rollback_even_if_the_clock_steps_back(new_run, names):
    d = new_run(batch_size=2, max_staleness=1)
    d.update()
    d.client.hset(keys.run(d.run), mapping={"version": 0, "head": 0, "joined": 0})  # it lost the Join as well
    d.ms -= 500_000
    with pytest.raises(RolledBack):
        d.reserve()
    joined = d.c.join("t1", 1)
    assert (joined.version, joined.head) == (1, 1)
    assert d.c.consume("t1", 1) is None


def test_the_smallest_budget_keeps_moving_if_the_trainer_checkpoints_while_it_waits(new_run, names):
    d = new_run(batch_size=2, max_staleness=1, max_trajectory_bytes=1000, byte_budget=2000)
    for version in range(4):
        d.fill_head()
        d.c.consume(names.trainer, version)
        d.publish()
        assert d.reserve() == Refused("MEMORY")
        assert d.c.status()["memory_full"]
        assert d.c.checkpoint(names.trainer, version + 1) == version + 1
