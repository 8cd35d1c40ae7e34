"""What stays in Redis, and how long: tombstones an hour, batches until a checkpoint covers them, and nothing else."""

from pipeline import keys
from pipeline.coordinator import Filtered, Refused

HOUR = 3600


def test_entries_that_left_leave_a_tombstone_for_an_hour(new_run, names):
    """Its answer is all that is left of an entry: RELEASED, SURPLUS or FILTERED; no payload, no place in any index."""
    d = new_run(batch_size=1, buffer_capacity=3, max_staleness=0, group_size=2, filter_metric="score")
    released, filtered, placed = d.reserve(), d.reserve(), d.reserve()
    d.c.release(released.entry, "cancelled")
    assert d.finish(filtered, [1.0, 1.0]) == Filtered()
    surplus = d.reserve()
    d.finish(placed, [0.0, 1.0])
    states = {"RELEASED": released, "FILTERED": filtered, "SURPLUS": surplus}
    for state, r in states.items():
        assert d.entry(r.entry)["state"] == state
        assert HOUR - 60 < d.client.ttl(keys.entry(d.run, r.entry)) <= HOUR
        assert d.reserve(entry=r.entry) == Refused("GONE")
    assert d.client.ttl(keys.entry(d.run, placed.entry)) == -1
    assert d.client.zrange(keys.reserved(d.run), 0, -1) == d.client.zrange(
        keys.worker_entries(d.run, names.worker), 0, -1
    )
    assert {ref.entry for ref in d.c.consume(names.trainer, 0).refs} == {placed.entry}
    assert len(d.stored_payloads()) == 2


def test_a_run_holds_no_more_after_many_updates_than_after_a_few(new_run, names):
    """Each update checkpointed: two batches, the window, and what never goes: prompts, versions, events."""
    d = new_run(batch_size=2, max_staleness=1, publish_every=2)
    sizes = []
    for event in range(1, 9):
        for _ in range(2):
            d.fill_head()
            d.c.consume(names.trainer, d.head)
        d.publish()
        d.c.checkpoint(names.trainer, d.head)
        found = d.everything()
        found.pop(keys.events(d.run).encode())
        sizes.append((len(found), len(d.stored_payloads()), d.c.status()["stored"]))
        assert d.c.status()["event"] == event
    assert len(set(sizes[2:])) == 1
    assert sizes[-1][1] == sizes[-1][2]


def test_the_redundancy_of_groups_counts_in_the_byte_budget_while_they_run(new_run):
    """N = 1, N' = 2, B = 4: a reservation may bring two trajectories, a finished entry brought one; 8 fit."""
    d = new_run(batch_size=4, max_staleness=1, group_launch=2, max_trajectory_bytes=1000, byte_budget=8000)
    taken = d.reserve_all()
    assert len(taken) == 4
    assert d.reserve() == Refused("MEMORY")
    for r in taken:
        d.finish(r)
    assert d.c.status()["stored"] == 4
    assert len(d.reserve_all()) == 2
    assert d.reserve() == Refused("MEMORY")
    assert d.c.status()["memory_full"]
