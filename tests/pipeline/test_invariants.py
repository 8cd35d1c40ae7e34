"""Random walks through the ledger, on both servers; after every step each invariant holds, by its protocol name."""

import itertools
import random

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from pipeline import keys
from pipeline.coordinator import Refused
from pipeline.ledger_types import Reservation
from tests.fixtures_ledger import Driver

PROMPTS = 11
numbers = itertools.count()

STEPS = {
    "reserve": 8,
    "finish": 6,
    "release": 2,
    "consume": 8,
    "publish": 8,
    "load": 4,
    "checkpoint": 1,
    "join": 1,
    "reap": 1,
    "renew": 1,
    "flush": 1,
}
REASONS = ("failed", "retry", "cancelled", "lost")


@st.composite
def rules(draw):
    max_staleness = draw(st.integers(0, 3))
    batch_size = draw(st.integers(1, 2))
    return {
        "max_staleness": max_staleness,
        "batch_size": batch_size,
        "buffer_capacity": batch_size + draw(st.sampled_from([0, 0, 1])),
        "publish_every": draw(st.integers(1, min(2, max_staleness + 1))),
        "sampler": draw(st.sampled_from(["uncertainty", "shuffle"])),
        "max_attempts": 50,
    }


class Walk:
    """Takes steps, each of them twice where a repetition must change nothing, and knows what was handed out."""

    def __init__(self, client, run, rules, random):
        self.d, self.rules, self.random = Driver(client, run, PROMPTS, **rules), rules, random
        self.client, self.trainer, self.trainers = client, "t0-a", itertools.count(1)
        self.running: list[Reservation] = []
        self.batches: dict[int, tuple] = {}
        self.checkpointed, self.newest = 0, (0, 0, 0)
        for engine in range(3):
            self.d.c.register_engine(f"e{engine}", 0)

    def reserve(self):
        for _ in range(self.random.randint(1, 6)):
            engine, worker = f"e{self.random.randrange(3)}", f"w{self.random.randrange(2)}"
            before = self.d.everything() if self.random.random() < 0.2 else None
            r = self.d.reserve(engine=engine, worker=worker)
            if isinstance(r, Refused):
                assert before in (None, self.d.everything()), "refusal writes nothing"
            else:
                assert self.d.reserve(engine=engine, worker=worker, entry=r.entry) == r
                self.running.append(r)

    def finish(self):
        for _ in range(min(self.random.randint(1, 6), len(self.running))):
            r = self.running.pop(self.random.randrange(len(self.running)))
            outcome = self.random.random()
            answer = self.d.finish(r, outcome)
            assert self.d.finish(r, outcome) == answer

    def release(self):
        if self.running:
            r = self.running.pop(self.random.randrange(len(self.running)))
            self.d.c.release(r.entry, self.random.choice(REASONS))
            assert not self.d.c.release(r.entry, "failed")

    def consume(self):
        head, version = self.d.head, self.newest[0]
        if head < version + self.rules["publish_every"] and (batch := self.d.c.consume(self.trainer, head)):
            assert len(batch.refs) == self.rules["batch_size"]
            assert self.batches.setdefault(head, batch.refs) == batch.refs, "order"
            for t in self.d.c.fetch(batch.refs):
                assert head - t.version <= self.rules["max_staleness"], "bound"
        for stored in range(self.checkpointed, self.d.head):
            assert self.d.c.consume(self.trainer, stored).refs == self.batches[stored], "order"

    def publish(self):
        if self.d.head == self.newest[0] + self.rules["publish_every"]:
            for _ in range(2):
                self.d.c.publish(self.trainer, self.d.head, f"weights/{self.d.head}", "")

    def load(self):
        self.d.c.register_engine(f"e{self.random.randrange(3)}", self.newest[0])

    def checkpoint(self):
        for _ in range(2):
            oldest = self.d.c.checkpoint(self.trainer, self.d.head)
        assert oldest <= self.d.head
        self.checkpointed = oldest

    def join(self):
        """The trainer comes back at the oldest point it may: the second-newest checkpoint."""
        self.trainer = f"t{next(self.trainers)}"
        for _ in range(2):
            self.d.c.join(self.trainer, self.checkpointed, recent=[])

    def reap(self):
        self.d.ms += 20_000
        self.d.c.renew("w1", [r.entry for r in self.running])
        gone = set(self.d.c.reap())
        self.running = [r for r in self.running if r.entry not in gone]

    def renew(self):
        for worker in ("w0", "w1"):
            mine = [r.entry for r in self.running if self.d.entry(r.entry)["worker"] == worker]
            gone = self.d.c.renew(worker, mine).cancelled
            assert all(self.d.entry(entry)["state"] == "SURPLUS" for entry in gone)
            self.running = [r for r in self.running if r.entry not in gone]

    def flush(self):
        self.client.script_flush()

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self):
        run = self.d.c.fields()
        version, head, oldest = int(run["version"]), int(run["head"]), int(run["oldest"])
        B, capacity, eta = (self.rules[k] for k in ("batch_size", "buffer_capacity", "max_staleness"))
        now = (version, head, int(run["event"]))
        assert all(a >= b for a, b in zip(now, self.newest, strict=True)), "monotone"
        self.newest = now
        assert version <= head <= version + self.rules["publish_every"], "order"

        due = {}
        reserved = self.client.zrange(keys.reserved(self.d.run), 0, -1, withscores=True)
        for _, score in reserved:
            due[int(score) >> 32] = due.get(int(score) >> 32, 0) + 1
        members, slack = {}, 0
        for view in self.d.c.buffers():
            members[view.id] = self.client.zrange(keys.buffer_entries(self.d.run, view.id), 0, -1)
            occupied = len(members[view.id])
            assert (view.occupied, view.due) == (occupied, due.get(view.id, 0) if view.id >= head else 0), view
            assert occupied <= B, "capacity"
            if view.id >= head:
                slack = max(slack, 0) + (capacity if occupied < B else occupied) - occupied - view.due
                assert slack >= 0 or capacity > B, "soundness"
            else:
                assert view.state == "CONSUMED"
            for entry in members[view.id]:
                assert view.id - int(self.d.entry(entry.decode())["version"]) <= eta, "bound"
        assert sum(due.values()) == sum(n for b, n in due.items() if head <= b <= version + eta), "bound"

        in_buffers = [entry for entries in members.values() for entry in entries]
        assert len(set(in_buffers)) == len(in_buffers), "once"
        states = {e: "CONSUMED" if b < head else "OCCUPIED" for b, entries in members.items() for e in entries}
        states |= {entry: "RESERVED" for entry, _ in reserved}
        for key in self.client.scan_iter(keys.entry(self.d.run, "*")):
            entry = key.removeprefix(keys.entry(self.d.run, "").encode())
            state = self.client.hget(key, "state").decode()
            assert state == states.pop(entry, state), "conservation"
            assert entry in in_buffers or state in ("RESERVED", "RELEASED", "SURPLUS"), "conservation"
        assert not states, "conservation"
        prompts = [p["state"] for p in self.d.c.prompts()]
        assert len(prompts) == PROMPTS and prompts.count("in flight") == len(reserved), "conservation"

        refs = {(e[b"worker"].decode(), i) for e in map(self._entry, in_buffers) for i in e[b"ids"].decode().split()}
        assert self.d.stored_payloads() == refs, "payload"
        assert int(run["stored"]) == len(refs), "payload"
        assert oldest == self.checkpointed

    def _entry(self, entry):
        return self.client.hgetall(keys.entry(self.d.run, entry.decode()))

    def head_becomes_ready(self):
        """liveness: everything in flight finishes or is released; then head fills with what fresh engines reserve."""
        while self.running:
            self.random.choice([self.finish, self.release])()
        for _ in range(2 * self.rules["batch_size"] + 1):
            self.publish()
            self.check()
            self.d.c.register_engine("e0", self.newest[0])
            if self.d.buffer(self.d.head).state.startswith("READY"):
                return
            r = self.d.reserve(engine="e0", worker="w0")
            assert isinstance(r, Reservation), f"liveness: {r}, {self.d.c.buffers()}"
            self.d.finish(r)
        raise AssertionError("liveness")


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(rules=rules(), seed=st.integers(0, 2**32))
def test_every_invariant_holds_after_every_step(client, run, rules, seed):
    """Shrinking needs no list of steps: a seed names a walk, and the notes tell it."""
    walk = Walk(client, f"{run}-{next(numbers)}", rules, random.Random(seed))
    steps = 30 if type(client).__module__.startswith("fakeredis") else 60
    for name in walk.random.choices(list(STEPS), STEPS.values(), k=steps):
        note(f"{name}, {[(b.id, b.state, b.occupied, b.due) for b in walk.d.c.buffers()]}")
        getattr(walk, name)()
        walk.check()
    walk.head_becomes_ready()
