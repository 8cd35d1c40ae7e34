"""A run of the ledger that a test can drive: short calls for worker, engine and trainer, and a clock in its hands.

On the real server each call is made by the user of its role, as docker/users.acl has them.
"""

import contextlib
import re
from pathlib import Path
from types import SimpleNamespace

import fakeredis
import pytest

import pipeline
from pipeline import keys
from pipeline.coordinator import Coordinator
from pipeline.ledger_types import Reservation
from pipeline.trajectory import Trajectory
from tests.fixtures_users import ClientOfUsers, LedgerOfUsers

WORKER, ENGINE, TRAINER = "w0-a", "e0", "t0-a"


def refusals_of_reserve():
    """As its script names them, without GONE."""
    header = (Path(pipeline.__file__).parent / "lua" / "reserve.lua").read_text()
    return set(re.search(r"^-- returns OK, .*\n-- +\| ([A-Z_ ]+) \| GONE$", header, re.MULTILINE)[1].split())


class Driver:
    """`c` is the Coordinator; time stands still unless a test moves `ms`. users: of the roles, else `client` is all."""

    def __init__(self, client, run, prompts=20, users=None, **settings):
        self.client, self.run, self.ms = client, run, 1_000_000
        self.users = users and ClientOfUsers(users)
        self.types: dict[bytes, bytes] = {}  # of the run's keys
        self.c = self.new_client(**settings)
        self.c.add_prompts({"id": f"p{i}", "payload": b"question %d" % i} for i in range(prompts))
        self.c.register_engine(ENGINE, 0)
        self.c.join(TRAINER, 0)

    def new_client(self, **settings):
        options = {"seed": 1, "clock": lambda: self.ms}
        ledger, client = (LedgerOfUsers, self.users) if self.users else (Coordinator, self.client)
        if not settings:
            return ledger(client, self.run, **options)
        with self.acting("coordinator"):
            return ledger.create(client, self.run, settings, **options)

    def acting(self, role):
        """What is called in here without a role of its own is called by this one."""
        return self.users.acting(role) if self.users else contextlib.nullcontext()

    def reserve(self, worker=WORKER, engine=ENGINE, entry=None):
        return self.c.reserve(worker, engine, entry)

    def reserve_all(self, worker=WORKER, engine=ENGINE):
        """Reserve until refused."""
        taken = []
        while isinstance(r := self.reserve(worker, engine), Reservation):
            taken.append(r)
        return taken

    def finish(self, r, outcome=1.0, client=None, **changes):
        """outcome: one number, or one of each member of the group."""
        outcomes = outcome if isinstance(outcome, list | tuple) else [outcome]
        group = [trajectory(r, o, **{"member": m, **changes}) for m, o in enumerate(outcomes)]
        return (client or self.c).occupy(r.entry, group)

    def fill_head(self, outcome=1.0):
        """Finish entries until head is READY."""
        while not self.buffer(self.head).state.startswith("READY"):
            r = self.reserve()
            assert isinstance(r, Reservation), r
            self.finish(r, outcome)

    def update(self):
        """One synchronous update: fill, consume, credit where evidence is "receipt", publish, reload the engine."""
        self.fill_head()
        batch = self.c.consume(TRAINER, self.head)
        if self.c.fields()["evidence"] == "receipt":
            self.credit(batch)
        self.publish()
        return batch

    def credit(self, batch):
        """All its prompts were solved."""
        entries = [self.entry(ref.entry) for ref in batch.refs]
        trained = sorted((int(entry["version"]), entry["prompt"]) for entry in entries)
        return self.c.credit(TRAINER, batch.version, [(prompt, 0.9, 1.0) for _, prompt in trained])

    def publish(self):
        version = self.head
        answer = self.c.publish(TRAINER, version, f"weights/{version}", f"digest-{version}")
        self.c.register_engine(ENGINE, version)
        return answer

    @property
    def head(self):
        return int(self.c.fields()["head"])

    def buffer(self, number):
        return next(b for b in self.c.buffers() if b.id == number)

    def prompt(self, name):
        return {k.decode(): v.decode() for k, v in self.client.hgetall(keys.prompt(self.run, name)).items()}

    def entry(self, name):
        return {k.decode(): v.decode() for k, v in self.client.hgetall(keys.entry(self.run, name)).items()}

    def stored_payloads(self):
        """Every payload in every stream of the run: {(stream, id)}."""
        prefix = keys.trajectories(self.run, "")
        streams = [k.decode() for k in self.client.scan_iter(f"{prefix}*")]
        return {(s.removeprefix(prefix), row[0].decode()) for s in streams for row in self.client.xrange(s)}

    def everything(self):
        """All that Redis holds of the run, to show that a refusal wrote nothing."""
        names = sorted(self.client.scan_iter(f"hr:{{{self.run}}}*", count=1000))
        with self.client.pipeline(transaction=False) as pipe:
            unknown = [name for name in names if name not in self.types]
            for name in unknown:
                pipe.type(name)
            self.types |= dict(zip(unknown, pipe.execute(), strict=True))
            for name in names:
                if self.types[name] == b"hash":
                    pipe.hgetall(name)
                elif self.types[name] == b"zset":
                    pipe.zrange(name, 0, -1, withscores=True)
                else:
                    pipe.xrange(name)
            return dict(zip(names, pipe.execute(), strict=True))


def trajectory(r, outcome=1.0, **changes):
    """A finished trajectory of reservation r: one prompt token, two action tokens."""
    fields = {
        "prompt_id": r.prompt,
        "entry": r.entry,
        "version": r.version,
        "event": r.event,
        "value": r.value,
        "outcome": outcome,
        "tokens": [1, 2, 3],
        "loss_mask": [0, 1, 1],
        "rollout_logprobs": [0.0, -1.0, -0.5],
        "segments": [(1, 2, ENGINE, r.version)],
    }
    return Trajectory(**fields | changes)


@pytest.fixture
def new_run(request, client, run):
    """new_run(prompts=20, batch_size=4, max_staleness=1, …) -> Driver, on both servers."""
    users = request.getfixturevalue("redis_users") if not isinstance(client, fakeredis.FakeRedis) else None

    def make(prompts=20, **settings):
        return Driver(client, run, prompts, users, **({"batch_size": 4, "max_staleness": 1} | settings))

    return make


@pytest.fixture
def names():
    """What the driver calls its one worker, engine and trainer; and how it makes a trajectory."""
    return SimpleNamespace(worker=WORKER, engine=ENGINE, trainer=TRAINER, trajectory=trajectory)
