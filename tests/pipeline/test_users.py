"""What each user of docker/users.acl may do, on real servers: Redis itself allows or refuses it.

The ledger's other tests make each call as the user of its role (tests/fixtures_users.py); here are the walls between
the roles, and where these end: what Redis lets a role do by hand that no script of its would. Every action comes from a
run in which it would be possible at that moment, and is tried by every role.
"""

import contextlib
import functools
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.exceptions import NoScriptError, ResponseError

from pipeline import evals, keys, ledger_copy, transfer
from pipeline.coordinator import Coordinator, Placed, Published, Reservation
from pipeline.progress import Progress, read_processes, record_metrics
from pipeline.redis_client import connect, patient, refuses
from pipeline.redis_server import find_binary
from tests.fixtures_ledger import ENGINE, TRAINER, WORKER, Driver, trajectory
from tests.fixtures_users import ROLES, password, server_of_users
from tests.waiting import wait_for

ALL, NOBODY = set(ROLES), set()
PROCESSES = ALL - {"viewer"}
SERVERS = {"found": find_binary, "redis": lambda: shutil.which("redis-check-rdb")}


@pytest.fixture(scope="module", params=SERVERS)
def binary(request, tmp_path_factory):
    """What a run would find, and Debian's Redis 7.0: Redis's server under every name that the package gives it."""
    found = SERVERS[request.param]()
    if found is None:
        pytest.skip("no Redis besides: `apt-get install redis-tools` brings one")
    binary = tmp_path_factory.mktemp("binary") / "redis-server"
    binary.symlink_to(found)
    return binary


@contextlib.contextmanager
def started(binary, folder):
    """The server of compose.yaml, with `client(role)`."""
    with server_of_users(binary, folder) as server, contextlib.ExitStack() as clients:

        @functools.cache
        def client(role):
            return clients.enter_context(connect(f"redis://{role}:{password(role)}@127.0.0.1:{server.port}/0"))

        server.client = client
        yield server


@pytest.fixture(scope="module")
def server(binary, tmp_path_factory):
    with started(binary, tmp_path_factory.mktemp("users")) as server:
        yield server


# action | who may
ACTIONS = {
    # the ledger's calls
    "create": {"coordinator"},
    "add_prompts": {"coordinator"},
    "reserve": {"worker"},
    "occupy": {"worker"},
    "release": {"worker"},
    "renew": {"worker"},
    "consume": {"trainer"},
    "fetch": {"trainer", "coordinator", "viewer"},
    "credit": {"trainer"},
    "publish": {"trainer"},
    "checkpoint": {"trainer"},
    "join": {"trainer"},
    "pause": {"coordinator"},
    "resume": {"coordinator"},
    "stop": {"coordinator"},
    "drain a worker": {"coordinator"},
    "reap": {"coordinator"},
    "copy the run": {"coordinator"},
    "register an engine": {"coordinator"},
    "mark an engine": {"coordinator", "worker"},  # a worker that distrusts it
    "remove an engine": {"coordinator"},
    # beside them
    "look at the run": ALL,
    "look at the events": ALL,
    "look at the processes": ALL,  # docker/headrace/healthy.py does, in each one's container
    "show what it does": PROCESSES,
    "record metrics": {"trainer"},
    "trim the events": {"coordinator"},
    "ask for an evaluation": {"coordinator"},
    "claim an evaluation": {"worker", "coordinator"},
    "ask for a transfer": {"coordinator"},
    "take a transfer": {"trainer"},
    # by hand
    "delete a buffer": {"trainer"},
    "delete the run": NOBODY,
    "trim what another worker handed in": NOBODY,
    "read what another worker handed in": {"trainer", "coordinator", "viewer"},
    "write a published version": {"trainer"},
    "name another engine": {"coordinator"},
    "give an engine another url": {"coordinator"},
    # by hand as well: to a key that one's scripts write, in any run
    "set the run's gate": PROCESSES,
    "set the run's version": PROCESSES,
    "set a setting of the run": PROCESSES,
    "set fields of a run that is not there": PROCESSES,
    "set a buffer's state": PROCESSES,
    "set a prompt's value": PROCESSES,
    "take an entry out of a READY batch": PROCESSES,
    "let an entry expire": PROCESSES,
    "end the record of events": PROCESSES,
    "speak for another process": PROCESSES,
    "delete what another worker handed in": PROCESSES,
    "delete one payload of another worker": {"worker", "trainer"},
    "set another worker's drain": {"worker", "coordinator"},
    "set an engine's state": {"worker", "coordinator"},
    # beside a run
    "write a key outside hr:": NOBODY,
    "read a key outside hr:": NOBODY,
    "EVAL": NOBODY,
    "EVAL_RO of a key outside hr:": NOBODY,
    "SCRIPT KILL": {"coordinator"},
    "EVAL_RO": {"viewer"},
    "write by EVAL_RO": NOBODY,
    "SCRIPT LOAD": {"coordinator"},
    "SCRIPT FLUSH": NOBODY,
    "FUNCTION LOAD": NOBODY,
    "SCAN": {"coordinator", "viewer"},
    "KEYS": NOBODY,
    "FLUSHALL": NOBODY,
    "CONFIG GET": NOBODY,
    "CONFIG SET": NOBODY,
    "ACL LIST": NOBODY,
    "MONITOR": NOBODY,
    "SHUTDOWN": NOBODY,
    "REPLICAOF": NOBODY,
    "MODULE LIST": NOBODY,
    "CLIENT KILL": NOBODY,
    "CLIENT LIST": NOBODY,
    "PUBLISH on a channel": NOBODY,
    "INFO": ALL,
}


class Try:
    """A run in which every action is possible, and the actions, each by a client of one role."""

    def __init__(self, server, run, action):
        users = {role: server.client(role) for role in ROLES}
        self.d = Driver(users["viewer"], run, 6, users, batch_size=1, max_staleness=3, evidence="receipt")
        self.d.fill_head()
        self.r = self.d.reserve()
        if action in ("credit", "publish", "checkpoint"):
            self.d.c.consume(TRAINER, 0)
        if action in ("publish", "checkpoint"):
            self.d.c.credit(TRAINER, 0, [(self.r.prompt, 0.9, 1.0)])
        if action == "claim an evaluation":
            evals.request(users["coordinator"], run, 0)

    def act(self, action, client):
        c = Coordinator(client, self.d.run, seed=1, clock=self.d.ms)
        run = self.d.run
        hand = client.execute_command
        match action:
            case "create":
                settings = {"batch_size": 1, "max_staleness": 1}
                c._ledger.run("create", 1, "digest", "1 1 1 1 1 1 1 0 1 1 shuffle 0 event", "max_staleness", 0)
                Coordinator.create(client, f"{run}-new", settings)
            case "add_prompts":
                c.add_prompts([{"id": "new"}])
            case "reserve":
                assert isinstance(c.reserve(WORKER, ENGINE), Reservation)
            case "occupy":
                assert isinstance(c.occupy(self.r.entry, [trajectory(self.r)]), Placed)
            case "release":
                assert c.release(self.r.entry, "failed")
            case "renew":
                c.renew(WORKER, [self.r.entry])
            case "consume":
                assert c.consume(TRAINER, 0)
            case "fetch":
                c.fetch(self.d.c.peek(0) or self.d.c.consume(TRAINER, 0).refs)
            case "credit":
                c.credit(TRAINER, 0, [(self.r.prompt, 0.9, 1.0)])
            case "publish":
                assert isinstance(c.publish(TRAINER, 1, "weights/1", "digest"), Published)
            case "checkpoint":
                c.checkpoint(TRAINER, 1)
            case "join":
                c.join("t1-a", 0)
            case "pause":
                c.pause()
            case "resume":
                c.resume()
            case "stop":
                c.stop("a test")
            case "drain a worker":
                c.drain(WORKER)
            case "reap":
                c.reap()
            case "copy the run":
                cut = ledger_copy.cut(client, run)
                assert sum(map(len, (cut.commands, cut.streams)))
                client.rpush(keys.transfers(run), "one"), client.lrem(keys.transfers(run), 1, "one")
            case "register an engine":
                c.register_engine(ENGINE, 0, "http://127.0.0.1:1")
            case "mark an engine":
                c.mark_engine(ENGINE, "failed", "a test")
            case "remove an engine":
                c.remove_engine(ENGINE)
            case "look at the run":
                c.fields(), c.weights(0), c.engines()
            case "look at the events":
                c.wait(c.last_event(), 0), c.wait("0", 0)
            case "look at the processes":
                Progress(self.d.users.users["trainer"], run, "trainer", "trainer").working()
                assert read_processes(client, run)
            case "show what it does":
                progress = Progress(client, run, "one", "role")
                progress.waiting("nothing")
                progress.done()
            case "record metrics":
                record_metrics(client, run, {"version": 0})
            case "trim the events":
                client.xtrim(keys.events(run), maxlen=100, approximate=False)
            case "ask for an evaluation":
                evals.request(client, run, 0)
            case "claim an evaluation":
                assert evals.claim(client, run, WORKER) == 0
                evals.give_back(client, run, 0, WORKER)
            case "ask for a transfer":
                client.rpush(keys.transfers(run), "one")
                client.lrem(keys.transfers(run), 1, "one")
            case "take a transfer":
                client.blpop([keys.transfers(run)], timeout=0.01)
                transfer.answer(client, run, transfer.Transfer("1", "", "", "", 1.0), transfer.DONE)
            case "delete a buffer":
                client.delete(keys.buffer(run, 0))
            case "delete the run":
                client.delete(keys.run(run))
            case "trim what another worker handed in":
                client.xtrim(keys.trajectories(run, WORKER), maxlen=0)
            case "read what another worker handed in":
                client.xrange(keys.trajectories(run, WORKER))
            case "set the run's gate":
                client.hset(keys.run(run), "paused", "by hand")
            case "set the run's version":
                client.hset(keys.run(run), "version", 9)
            case "set a setting of the run":
                client.hset(keys.run(run), "max_staleness", 9)
            case "set fields of a run that is not there":
                client.hset(keys.run(f"{run}-other"), "version", 0)
            case "set a buffer's state":
                client.hset(keys.buffer(run, 0), "state", "CONSUMED")
            case "set a prompt's value":
                client.hset(keys.prompt(run, self.r.prompt), "value", 1)
            case "take an entry out of a READY batch":
                (entry, *_) = self.d.client.zrange(keys.buffer_entries(run, 0), 0, 0) or ["one that is out"]
                client.zrem(keys.buffer_entries(run, 0), entry)
            case "let an entry expire":
                client.expire(keys.entry(run, self.r.entry), 0)
            case "end the record of events":
                client.xadd(keys.events(run), {"kind": "made up"}, maxlen=0, approximate=False)
            case "speak for another process":
                client.hset(keys.process(run, "another"), "waiting", "nothing")
            case "delete what another worker handed in":
                client.delete(keys.trajectories(run, WORKER))
            case "delete one payload of another worker":
                client.xdel(keys.trajectories(run, WORKER), "1-0")
            case "set another worker's drain":
                client.hset(keys.worker(run, WORKER), "drain", 1)
            case "set an engine's state":
                client.hset(keys.engine(run, ENGINE), "state", "ready")
            case "give an engine another url":
                c.mark_engine(ENGINE, "ready", url="http://127.0.0.1:9")
                client.hset(keys.engine_urls(run), ENGINE, "http://127.0.0.1:9")
            case "write a published version":
                client.hset(keys.versions(run), "1", "{}")
            case "name another engine":
                client.hset(keys.engine_changes(run), "e9", "http://127.0.0.1:9")
            case "write a key outside hr:":
                client.hset("other", "a", "b")
            case "read a key outside hr:":
                client.hgetall("other")
            case "EVAL_RO":
                hand("EVAL_RO", "return redis.call('HGET', KEYS[1], 'version')", 1, keys.run(run))
            case "write by EVAL_RO":
                hand("EVAL_RO", "return redis.call('HSET', KEYS[1], 'version', 9)", 1, keys.run(run))
            case "EVAL":
                client.eval("return 1", 0)
            case "EVAL_RO of a key outside hr:":
                hand("EVAL_RO", "return redis.call('GET', 'other')", 0)
            case "SCRIPT KILL":
                try:
                    client.script_kill()
                except ResponseError as error:
                    if "No scripts in execution" not in str(error):
                        raise
            case "SCRIPT LOAD":
                client.script_load("return 1")
            case "FUNCTION LOAD":
                hand("FUNCTION LOAD", "#!lua name=x\nredis.register_function('x', function() end)")
            case "SCAN":
                client.scan(0)
            case "CLIENT KILL":
                hand("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
            case "CONFIG GET":
                client.config_get("maxmemory")
            case "CONFIG SET":
                client.config_set("dir", "/")
            case "REPLICAOF":
                hand("REPLICAOF", "127.0.0.1", "1")
            case "PUBLISH on a channel":
                client.publish("channel", "x")
            case "KEYS":
                client.keys("*")
            case (
                "MODULE LIST"
                | "ACL LIST"
                | "SCRIPT FLUSH"
                | "MONITOR"
                | "SHUTDOWN"
                | "FLUSHALL"
                | "CLIENT LIST"
                | "INFO"
            ):
                hand(action)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_user_may_do_what_its_role_needs_and_nothing_else(server, run, action):
    one = Try(server, run, action)
    before = one.d.everything()
    for role in sorted(ROLES, key=ACTIONS[action].__contains__):  # who may comes last
        allowed = True
        try:
            one.act(action, server.client(role))
        except redis.RedisError as error:
            assert refuses(error), f"{role}: {error!r}"
            allowed = False
        assert allowed == (role in ACTIONS[action]), role
        if not allowed:
            assert one.d.everything() == before, f"{role} was refused, and something is changed"


def test_whoever_may_not_load_scripts_waits_until_the_coordinator_has(server, run):
    """As after a start of Redis, which forgets them."""
    one = Try(server, run, "reserve")
    worker = Coordinator(server.client("worker"), run, seed=1, clock=one.d.ms)
    server.client("admin").script_flush()
    with pytest.raises(NoScriptError, match="this user may not load them: the run's coordinator does"):
        worker.reserve(WORKER, ENGINE)
    said = []
    with ThreadPoolExecutor(1) as pool:
        reserving = pool.submit(patient, lambda: worker.reserve(WORKER, ENGINE), say=said.append)
        wait_for(lambda: said)
        assert not reserving.done()
        one.d.c.reap()
        assert isinstance(reserving.result(30), Reservation)


def test_what_is_finished_is_handed_in_once_the_scripts_are_there_again(server, run):
    one = Try(server, run, "occupy")
    server.client("admin").script_flush()
    with pytest.raises(NoScriptError):
        one.d.finish(one.r)
    one.d.c.reap()
    assert isinstance(one.d.finish(one.r), Placed)
    assert len(one.d.stored_payloads()) == 2


def test_a_run_that_is_made_brings_the_scripts_that_only_others_use(server, run):
    server.client("admin").script_flush()
    Try(server, run, "reserve")  # workers and trainer begin at once


def test_a_server_that_is_killed_comes_back_with_all_that_scripts_wrote(binary, tmp_path, run):
    """It replays its file as the user `default`, and drops in silence what that user may not do in a transaction."""
    with started(binary, tmp_path) as server:
        d = Try(server, run, "reserve").d
        before = d.everything()
        server.process.kill()
    with started(binary, tmp_path) as server:
        d.client = server.client("viewer")
        assert d.everything() == before
