"""Redis at maxmemory: no new entry, and everything else goes on, until a checkpoint makes room."""

import numpy as np
import pytest
import redis
from redis.exceptions import OutOfMemoryError

from pipeline import keys, memory
from pipeline.coordinator import Coordinator, Credited, Filtered, Placed, Published, Refused, Replayed
from pipeline.errors import ConfigError
from pipeline.ledger_types import Reservation
from pipeline.progress import Progress, read_metrics, read_processes, record_metrics
from pipeline.redis_server import RedisServer
from tests.fixtures_ledger import TRAINER, WORKER, Driver, trajectory

T = 100_000  # tokens: 900 kB a trajectory
LONG = {
    "tokens": np.ones(T, np.int32),
    "loss_mask": np.ones(T, np.uint8),
    "rollout_logprobs": np.full(T, -1, np.float32),
}
SPARE = 1 << 20  # bytes; buffers of connections come and go, and one has held a trajectory


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server whose maxmemory nobody else depends on."""
    server = RedisServer.start(tmp_path_factory.mktemp("full"))
    yield server
    server.stop()


@pytest.fixture
def client(server):
    with redis.Redis.from_url(server.url) as client:
        yield client
        client.config_set("maxmemory", 0)


@pytest.fixture
def d(client, run):
    """B = 4, η = 1: eight in flight, nothing finished."""
    d = Driver(client, run, batch_size=4, max_staleness=1)
    d.taken = d.reserve_all()
    assert len(d.taken) == 8
    return d


def finish(d, r):
    return d.finish(r, **LONG, segments=[(0, T, "e0", r.version)])


def fill_redis(d):
    """As if the rest belonged to others."""
    found = d.client.info("memory")
    counted = found["used_memory"] - found["mem_not_counted_for_evict"]  # not what waits to be appended to the file
    d.client.config_set("maxmemory", counted - SPARE)
    with pytest.raises(OutOfMemoryError):
        d.client.set("one more", "byte")


def test_reserve_is_refused_and_writes_nothing(d):
    d.c.release(d.taken.pop().entry, "cancelled")
    fill_redis(d)
    before = d.everything()
    assert d.reserve() == Refused("MEMORY")
    assert d.everything() == before
    assert d.c.status()["memory_full"]


def test_what_was_admitted_is_finished_all_the_same(d):
    fill_redis(d)
    assert [finish(d, r) for r in d.taken] == [Placed(0)] * 4 + [Placed(1)] * 4
    assert [finish(d, r) for r in d.taken] == [Placed(0)] * 4 + [Placed(1)] * 4
    assert len(d.stored_payloads()) == 8
    batch = d.c.consume(TRAINER, 0)
    assert [(t.entry, len(t.tokens)) for t in d.c.fetch(batch.refs)] == [(r.entry, T) for r in d.taken[:4]]


def test_a_group_of_one_is_not_filtered_in_a_full_redis(client, run):
    d = Driver(client, run, batch_size=1, filter_metric="acc")
    r = d.reserve()
    fill_redis(d)
    assert finish(d, r) == Placed(0)
    assert d.c.fetch(d.c.peek(0))[0].entry == r.entry


def test_a_full_redis_that_forgot_its_scripts_takes_what_is_finished(d):
    fill_redis(d)
    d.client.script_flush()
    assert finish(d, d.taken[0]) == Placed(0)


def test_what_a_full_redis_refuses_leaves_no_payload(d):
    gone, *_ = d.taken
    d.c.release(gone.entry, "cancelled")
    fill_redis(d)
    assert finish(d, gone) == Refused("GONE")
    assert d.stored_payloads() == set()


def test_two_clients_of_one_worker_lose_nothing_in_a_full_redis(d):
    fill_redis(d)
    other = d.new_client()
    finish(d, d.taken[0])
    other._ledger.streams.clear()
    d.c._ledger.streams[WORKER].newest += 10_000  # what follows from the other client is behind it
    for r, client in zip(d.taken[1:], [d.c, other, other, d.c, other, d.c, other], strict=True):
        assert isinstance(d.finish(r, client=client), Placed)
    assert len(d.stored_payloads()) == 8


def test_a_group_is_finished_or_filtered_in_a_full_redis(client, run):
    d = Driver(client, run, batch_size=4, max_staleness=1, group_size=2, filter_metric="acc")
    first, second = d.reserve(), d.reserve()
    fill_redis(d)
    for r, outcomes, answer in ((first, (0.0, 1.0), Placed(0)), (second, (1.0, 1.0), Filtered())):
        group = [trajectory(r, outcome, member=m) for m, outcome in enumerate(outcomes)]
        assert d.c.occupy(r.entry, group) == answer
    assert len(d.stored_payloads()) == 2


def test_updates_go_on_and_checkpoints_make_room(d):
    for r in d.taken[:7]:
        finish(d, r)
    fill_redis(d)
    full = d.client.info("memory")["used_memory"]
    assert finish(d, d.taken[7]) == Placed(1)
    assert d.c.renew(WORKER, []).cancelled == ()
    assert d.c.reap() == []
    assert len(d.c.consume(TRAINER, 0).refs) == 4
    d.publish()
    assert d.reserve() == Refused("MEMORY")
    assert d.c.checkpoint(TRAINER, 1) == 1
    assert d.client.info("memory")["used_memory"] < full
    assert isinstance(d.reserve(), Reservation)
    assert len(d.c.consume(TRAINER, 1).refs) == 4


def test_what_was_trained_becomes_evidence(client, run):
    d = Driver(client, run, batch_size=4, max_staleness=1, evidence="receipt")
    d.fill_head()
    batch = d.c.consume(TRAINER, 0)
    fill_redis(d)
    assert d.credit(batch) == Credited()
    assert d.credit(batch) == Replayed()
    assert d.publish() == Published(1)


def test_a_head_that_lacks_an_entry_is_filled_once_a_checkpoint_has_made_room(d):
    """Four are kept for replay, three wait in head, the fourth was given back: the checkpoint must free the four."""
    for r in d.taken[:7]:
        finish(d, r)
    fill_redis(d)
    d.c.release(d.taken[7].entry, "failed")
    d.c.consume(TRAINER, 0)
    d.publish()
    assert d.reserve() == Refused("MEMORY")
    assert d.c.checkpoint(TRAINER, 1) == 1
    d.fill_head()
    assert len(d.c.consume(TRAINER, 1).refs) == 4


def test_a_join_goes_on(d):
    finish(d, d.taken[0])
    fill_redis(d)
    assert d.c.join("t1", 1).released == 7
    assert d.stored_payloads() == set()


def test_what_is_only_for_display_is_left_out(d):
    process = Progress(d.client, d.run, "trainer", "trainer")
    process.working(step=1)
    fill_redis(d)
    Progress(d.client, d.run, "worker", "worker").waiting("memory")
    record_metrics(d.client, d.run, {"version": 3})
    assert read_metrics(d.client, d.run)[0] == []
    assert [line["name"] for line in read_processes(d.client, d.run)] == ["trainer"]
    process.done()
    assert not d.client.exists(keys.process(d.run, "trainer"))


def test_a_budget_that_redis_cannot_hold_is_refused(client, run):
    limit = client.info("memory")["used_memory"] + (1 << 22)
    client.config_set("maxmemory", limit)
    settings = {"batch_size": 4, "max_trajectory_bytes": 1000}
    for budget in (limit, limit + 1, 1 << 40):
        with pytest.raises(ConfigError, match=f"byte_budget {budget} must be below Redis's maxmemory {limit}"):
            Coordinator.create(client, run, settings | {"byte_budget": budget})
        assert not list(client.scan_iter(f"hr:{{{run}}}*"))
    Coordinator.create(client, run, settings | {"byte_budget": limit - 1})
    assert not memory.is_full(client)
