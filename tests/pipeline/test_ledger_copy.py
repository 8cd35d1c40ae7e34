"""What a copy of a run's keys makes in another Redis is what there was, whichever server has either."""

import random

import pytest
import redis

from pipeline import keys, ledger_copy
from pipeline.errors import LedgerError
from pipeline.redis_server import RedisServer
from tests.fixtures_ledger import Driver
from tests.pipeline.test_users import SERVERS

OTHER = "hr:{run-2}"
REMEMBERED = ("length", "last-generated-id", "entries-added", "max-deleted-entry-id")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Name -> a client: the server that a run would find, and Redis 7.0 where the machine has one."""
    found, started = {}, []
    for name, find in SERVERS.items():
        if (binary := find()) is None:
            pytest.skip("no Redis besides: `apt-get install redis-tools` brings one")
        folder = tmp_path_factory.mktemp(name)
        (folder / "redis-server").symlink_to(binary)
        started.append(RedisServer.start(folder / "data", binary=folder / "redis-server"))
        found[name] = redis.Redis.from_url(started[-1].url)
    yield found
    for client in found.values():
        client.close()
    for server in started:
        server.stop()


def told(client, run):
    """All that there is, with what expires and what streams remember."""
    found = {}
    for key in sorted(client.scan_iter(f"{keys.run(run)}*")):
        match kind := client.type(key).decode():
            case "hash":
                read = client.hgetall(key)
            case "zset":
                read = client.zrange(key, 0, -1, withscores=True)
            case "list":
                read = client.lrange(key, 0, -1)
            case "stream":
                remembered = client.xinfo_stream(key)
                read = client.xrange(key), [remembered[name] for name in REMEMBERED]
        found[key] = kind, client.pexpiretime(key), read
    return found


def copied(source, target, run):
    cut = ledger_copy.cut(source, run)
    streams = [command for stream in cut.streams for command in ledger_copy.entries(source, stream, whole=True)]
    ledger_copy.make(target, run, [*streams, *cut.commands])
    return cut


@pytest.mark.parametrize(("source", "target"), [("found", "redis"), ("redis", "found")])
def test_a_copy_is_the_same_on_another_server(servers, source, target, run):
    client, other = servers[source], servers[target]
    d = Driver(client, run, prompts=1500, batch_size=4, max_staleness=1, byte_budget=0)
    d.update()
    d.c.release(d.reserve().entry, "failed")  # leaves a tombstone, which expires
    d.reserve()
    d.finish(d.reserve())
    client.zadd(keys.prompts(run), {"p0": random.Random(1).random() / 3, "tie": 2.0**52 + 1, "none": float("inf")})
    client.rpush(f"{keys.run(run)}:list", b"\x00\xff", b"", *range(2500))
    client.xadd(empty := keys.trajectories(run, "gone"), {"payload": b"\x80" * 100}, "7-1")
    client.xadd(empty, {"payload": b""}, "9-0")
    client.xdel(empty, "7-1", "9-0")
    client.hset(f"{OTHER}:entry:x", "state", "another run's")
    cut = copied(client, other, run)
    assert cut.fields["version"] == "1" and sorted(cut.versions) == [1]
    assert told(other, run) == told(client, run)
    assert {kind for kind, *_ in told(client, run).values()} == {"hash", "zset", "list", "stream"}
    assert any(expires > 0 for _, expires, _ in told(client, run).values())
    assert not other.exists(f"{OTHER}:entry:x")
    client.delete(f"{OTHER}:entry:x")


def test_processes_and_what_is_being_sent_do_not_go_along(servers, run):
    client, other = servers.values()
    Driver(client, run, batch_size=4)
    client.hset(keys.process(run, "trainer"), "role", "trainer")
    client.zadd(keys.processes(run), {"trainer": 1})
    client.rpush(keys.transfers(run), "weights for an engine of then")
    client.rpush(keys.transfer(run, "7"), "taken")
    copied(client, other, run)
    assert not [key for key in told(other, run) if b":process" in key or b":transfer" in key]
    assert told(other, run).keys() <= told(client, run).keys()


def test_what_comes_after_the_moment_of_the_cut_is_not_in_it(servers, run):
    client, other = servers.values()
    d = Driver(client, run, batch_size=4, max_staleness=1)
    d.finish(d.reserve())
    before, cut = told(client, run), ledger_copy.cut(client, run)
    d.update()
    streams = [command for stream in cut.streams for command in ledger_copy.entries(client, stream, whole=True)]
    ledger_copy.make(other, run, [*streams, *cut.commands])
    assert told(other, run) == before


def test_a_key_of_a_kind_that_is_never_made_is_named(servers, run):
    client, _ = servers.values()
    Driver(client, run, batch_size=4)
    client.set(f"{keys.run(run)}:mine", 1)
    with pytest.raises(LedgerError, match=f"{run}}}:mine: a string is nothing that headrace keeps; delete this key"):
        ledger_copy.cut(client, run)


@pytest.mark.parametrize(
    "command",
    [
        [b"HSET", OTHER.encode(), b"version", b"9"],
        [b"HSET", b"hr:{run}x", b"version", b"9"],
        [b"DEL", b"hr:{run}:events"],
        [b"FLUSHALL", b"hr:{run}"],
    ],
)
def test_a_forged_file_writes_nothing_but_its_own_run(servers, command):
    client, _ = servers.values()
    before = client.dbsize()
    with pytest.raises(LedgerError, match="expected keys of the run 'run' alone"):
        ledger_copy.make(client, "run", [[b"HSET", b"hr:{run}:launcher", b"a", b"b"], command])
    assert client.dbsize() == before


def test_of_a_great_stream_no_more_than_a_few_entries_are_held(servers, run):
    client, other = servers.values()
    Driver(client, run, batch_size=4)
    stream = keys.trajectories(run, "worker")
    for i in range(100):
        client.xadd(stream, {"payload": b"x" * 50_000}, f"{i + 1}-0")
    (found,) = (each for each in ledger_copy.cut(client, run).streams if each.key == stream.encode())
    before = client.info("commandstats")["cmdstat_xrange"]["calls"]
    entries = ledger_copy.entries(client, found, whole=True)
    for _ in range(ledger_copy.AT_ONCE):
        next(entries)
    assert client.info("commandstats")["cmdstat_xrange"]["calls"] == before + 1
    ledger_copy.make(other, run, entries)
