"""Workers die: what they held is released, and what comes too late is refused."""

from pipeline import keys
from pipeline.coordinator import Placed, Refused


def test_a_lease_that_ran_out_releases_everything_of_its_worker(new_run, names):
    d = new_run(lease_s=15)
    mine, other = [d.reserve() for _ in range(3)], d.reserve(worker="w1-a")
    d.ms += 10_000
    d.c.renew("w1-a", [other.entry])
    d.ms += 5_001
    assert set(d.c.reap()) == {r.entry for r in mine}
    assert d.c.reap() == []
    assert d.finish(mine[0]) == Refused("GONE")
    assert d.finish(other) == Placed(0)
    assert d.c.status()["released"] == {"lost": 3}
    assert [w["name"] for w in d.c.workers()] == ["w1-a"]


def test_a_worker_that_renews_keeps_its_entries(new_run, names):
    d = new_run(lease_s=15)
    r = d.reserve()
    for _ in range(4):
        d.ms += 10_000
        assert d.c.renew(names.worker, [r.entry]).cancelled == ()
        assert d.c.reap() == []


def test_an_entry_that_takes_too_long_fails(new_run, names):
    d = new_run(lease_s=15, max_age_s=60)
    r = d.reserve()
    for _ in range(6):
        d.ms += 10_000
        d.c.renew(names.worker, [r.entry])
    assert d.c.reap() == [r.entry]
    assert d.c.renew(names.worker, [r.entry]).cancelled == (r.entry,)
    assert d.c.status()["released"] == {"failed": 1}


def test_renew_releases_what_the_worker_does_not_know_only_after_one_lease(new_run, names):
    d = new_run(lease_s=15)
    lost = d.reserve()
    d.ms += 14_000
    known = d.reserve()
    d.c.renew(names.worker, [known.entry])
    assert d.entry(lost.entry)["state"] == "RESERVED"
    d.ms += 1_000
    d.c.renew(names.worker, [known.entry])
    assert d.entry(lost.entry)["state"] == "RELEASED"
    assert d.entry(known.entry)["state"] == "RESERVED"


def test_renew_cancels_what_the_ledger_lacks_but_not_what_is_finished(new_run, names):
    d = new_run()
    finished, foreign, running = d.reserve(), d.reserve(worker="w1-a"), d.reserve()
    d.finish(finished)
    entries = [finished.entry, running.entry, foreign.entry, "never-heard-of"]
    assert d.c.renew(names.worker, entries).cancelled == (foreign.entry, "never-heard-of")


def test_renew_tells_a_worker_to_drain(new_run, names):
    d = new_run()
    r = d.reserve()
    assert not d.c.renew(names.worker, [r.entry]).drain
    d.c.drain(names.worker)
    assert d.c.renew(names.worker, [r.entry]).drain
    assert d.finish(r) == Placed(0)


def test_the_drain_of_a_worker_that_never_comes_is_forgotten(new_run):
    d = new_run(lease_s=15)
    d.c.drain("nobody")
    assert d.reserve(worker="nobody") == Refused("PAUSED")
    d.ms += 16_000
    d.c.reap()
    assert not d.client.exists(keys.worker(d.run, "nobody"))


def test_after_a_restart_of_redis_one_full_lease_passes_first(new_run, names):
    d = new_run(lease_s=15)
    r = d.reserve()
    d.c.reap()
    d.client.hset(keys.run(d.run), "redis_run_id", "the one before")
    d.ms += 60_000
    assert d.c.reap() == []
    d.ms += 14_000
    d.c.renew(names.worker, [r.entry])
    d.ms += 1_000
    assert d.c.reap() == []
    d.ms += 15_000
    assert d.c.reap() == [r.entry]


def test_a_clock_that_steps_back_releases_nobody(new_run, names):
    d = new_run()
    d.reserve()
    d.ms -= 500_000
    assert d.c.reap() == []
    assert d.reserve().version == 0


def test_the_stream_of_a_dead_worker_goes_when_nothing_in_it_is_needed(new_run, names):
    d = new_run(batch_size=2, max_staleness=0)
    for version in range(3):
        d.update()
        d.c.checkpoint(names.trainer, version + 1)
    d.ms += 60_000
    d.c.reap()
    stream = keys.trajectories(d.run, names.worker)
    assert d.client.xlen(stream) == 2
    while d.buffer(d.head).state != "READY":
        d.finish(d.reserve(worker="w1-a"))
    d.c.consume(names.trainer, 3)
    d.publish()
    d.c.checkpoint(names.trainer, 4)
    assert not d.client.exists(stream, keys.worker(d.run, names.worker))


def test_a_worker_may_hold_more_entries_than_lua_can_unpack(new_run, names):
    d = new_run()
    entries = [f"never-heard-of-{number}" for number in range(9_000)]
    assert d.c.renew(names.worker, entries).cancelled == tuple(entries)
