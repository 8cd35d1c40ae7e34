"""Small configurations of the ledger, searched until nothing new is found: every interleaving, by the real Lua.

    state ── reserve (engine a or b) · occupy · release · consume · publish · load · checkpoint · expiry ──▶ states

A state is what Redis holds, put back by RESTORE before each step. States that differ only in names, or by a shift of
all versions, are one. In each of them every invariant holds and the model agrees; and once everything in flight has
finished or is released, fresh entries make head READY: liveness, walked along the steps that were found.

`make test` searches the small ones. All of them: HYPOTHESIS_PROFILE=long python -m pytest -s -k exhaustive
"""

import collections
import copy
import itertools
import os
import time

import pytest

from pipeline import keys
from pipeline.ledger_types import Batch, Reservation
from tests.fixtures_ledger import TRAINER, Driver
from tests.pipeline.ledger_machine.agreement import agree, same
from tests.pipeline.ledger_machine.base import outcome_of
from tests.pipeline.ledger_machine.invariants import TOMBSTONES, Contents, check
from tests.pipeline.ledger_machine.model import Model

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
SMALL = {"fakeredis": [(0, 1, 1, 1)], "redis": [(0, 1, 2, 1), (1, 1, 1, 1)]}  # (η, B, B', P)
LARGE = [
    (eta, B, capacity, P)
    for eta, B in itertools.product(range(3), (1, 2))
    for capacity in (B, B + 1)
    for P in range(1, min(2, eta + 1) + 1)
]
WORKERS = {"a": "e0", "b": "e1"}  # and their engines
KEPT = 2  # consumed batches; with this many the trainer first makes a checkpoint


class Search:
    """One configuration; two workers, each with an engine of its own."""

    def __init__(self, client, run, eta, B, capacity, P):
        rules = {"max_staleness": eta, "batch_size": B, "buffer_capacity": capacity, "publish_every": P}
        rules |= {"max_lost": 10**6, "lease_s": 15, "max_age_s": 10**6}
        prompts = capacity * (eta + P + 2)
        self.d, self.client, self.entries = Driver(client, run, prompts, **rules), client, itertools.count()
        self.model = Model(rules, [f"p{i}" for i in range(prompts)])
        self.model.join(TRAINER, 0, [])
        self.known: dict[str, Reservation] = {}
        self.found: list[dict[tuple, int]] = []  # state -> step -> state
        self.numbers: dict[tuple, int] = {}  # shape -> state
        self.shapes: list[tuple] = []
        self.fresh: list[list[str]] = []  # state -> workers with the newest weights
        for engine in WORKERS.values():
            self.d.c.register_engine(engine, 0)
            self.model.load(engine, 0)

    def run(self):
        """Breadth first."""
        queue = collections.deque()
        self.look()
        self.arrive(queue)
        while queue:
            state = queue.popleft()
            self.restore(state)
            number = self.numbers[self.shape()]
            for step in self.steps():
                self.restore(state)
                name = self.name(*step)
                self.take(*step)
                self.found[number][name] = self.arrive(queue)

    # -- states -------------------------------------------------------------------------------------------------------

    def look(self):
        self.everything = self.d.everything()

    def arrive(self, queue):
        """The number of the state that the ledger is in. A new one is kept, to go on from there."""
        shape = self.shape()
        if shape not in self.numbers:
            self.numbers[shape] = len(self.found)
            self.found.append({})
            self.shapes.append(shape)
            self.fresh.append([w for w in WORKERS if self.model.engines[WORKERS[w]][0] == self.model.version])
            queue.append(self.save())
        return self.numbers[shape]

    def shape(self):
        """What matters: all versions relative to the present one, who is placed in the order of pulling forward, and
        who runs where; the two workers are alike."""
        m = self.model
        placed = sorted((e for e in m.entries.values() if e.state == "OCCUPIED"), key=lambda e: (e.version, e.finished))
        workers = []
        for worker, engine in WORKERS.items():
            running = tuple(sorted(e.version - m.version for e in m.running() if e.worker == worker))
            workers.append((max(m.engines[engine][0] - m.version, -m.rules.max_staleness - 1), running))
        numbers = (m.head - m.version, m.head - m.oldest, m.head - m.checkpointed)
        return numbers, tuple((e.version - m.version, e.buffer - m.version) for e in placed), tuple(sorted(workers))

    def save(self):
        """What Redis holds, but for the record of what was, and the model of it."""
        gone = [name for name, e in self.model.entries.items() if e.state in TOMBSTONES]
        for name in gone:
            del self.model.entries[name]
        unwanted = {keys.entry(self.d.run, name) for name in gone} | {
            keys.events(self.d.run),
            keys.counters(self.d.run),
        }
        names = [name for name in self.everything if name.decode() not in unwanted]
        with self.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.dump(name)
            return list(zip(names, pipe.execute(), strict=True)), copy.deepcopy(self.model), self.d.ms

    def restore(self, state):
        rows, model, self.d.ms = state
        with self.client.pipeline(transaction=False) as pipe:
            pipe.delete(*self.everything)
            for name, dump in rows:
                pipe.restore(name, 0, dump)
            pipe.execute()
        self.model = copy.deepcopy(model)
        self.d.c._ledger.seen = (0, 0, 0)
        self.everything = dict(rows)

    # -- steps --------------------------------------------------------------------------------------------------------

    def steps(self):
        m = self.model
        for worker in WORKERS:
            yield "reserve", worker
            if m.engines[WORKERS[worker]][0] < m.version:
                yield "load", worker
            if any(e.worker == worker for e in m.running()):
                yield "expire", worker
        alike = {(e.version, e.worker): e.name for e in m.running()}
        for name in alike.values():
            yield "occupy", name
            yield "release", name
        if m.head - m.oldest < KEPT:
            yield ("consume",)
        if m.head > m.version:
            yield ("publish",)
        if m.head > m.checkpointed:
            yield ("checkpoint",)

    def name(self, kind, *args):
        """A step's name, which does not name the entry."""
        entry = self.model.entries.get(*args) if kind in ("occupy", "release") else None
        return (kind, entry.version - self.model.version, entry.worker) if entry else (kind, *args)

    def take(self, kind, *args):
        c, m = self.d.c, self.model
        if kind == "reserve":
            name, (worker,) = f"n{next(self.entries)}", args
            engine = WORKERS[worker]
            answer = outcome_of(lambda c: c.reserve(worker, engine, name), c)
            expected = m.reserve(name, worker, engine, self.d.ms, getattr(answer, "prompt", None))
            self.known[name] = answer
        elif kind == "load":
            version, engine = m.version, WORKERS[args[0]]
            answer = expected = c.register_engine(engine, version)
            m.load(engine, version)
        elif kind == "expire":
            self.d.ms += 15_001
            for worker in WORKERS.keys() - args:
                names = [e.name for e in m.running() if e.worker == worker]
                c.renew(worker, names)
                m.renew(worker, names, self.d.ms)
            answer, expected = set(c.reap()), m.reap(self.d.ms)
        elif kind == "occupy":
            answer, expected = self.d.finish(self.known[args[0]]), m.occupy(args[0], [1.0])
        elif kind == "release":
            answer, expected = c.release(args[0], "cancelled"), m.release(args[0], "cancelled")
        elif kind == "consume":
            head = m.head
            batch = outcome_of(lambda c: c.consume(TRAINER, head), c)
            answer = [ref.entry for ref in batch.refs] if isinstance(batch, Batch) else batch
            expected = m.consume(TRAINER, head)
        elif kind == "publish":
            head = m.head
            answer = outcome_of(lambda c: c.publish(TRAINER, head, "weights", ""), c)
            expected = m.publish(TRAINER, head)
        else:
            answer, expected = c.checkpoint(TRAINER, m.head), m.checkpoint(TRAINER, m.head)
        assert same(answer, expected), f"{kind} {args}: {answer}, expected {expected}, in {self.shape()}"
        self.look()
        found = Contents(self.d.run, self.everything)
        check(found, m.rules, (0, 0, 0))
        agree(found, m)

    # -- liveness -----------------------------------------------------------------------------------------------------

    def ended(self):
        """States in which nothing is in flight; all finishing and releasing leads to one of them."""
        return [n for n, (_, _, workers) in enumerate(self.shapes) if not any(running for _, running in workers)]

    def head_becomes_ready(self, state):
        """Publish if it is time, load if no engine is fresh; then reserve and finish, one by one."""
        rules = self.model.rules
        for _ in range(2 * rules.batch_size + 3):
            (head, _, _), placed, _ = self.shapes[state]
            steps = self.found[state]
            if head == rules.publish_every:
                state = steps["publish",]
            elif [b for _, b in placed].count(head) == rules.batch_size:
                return True
            elif finishing := [step for step in steps if step[0] == "occupy"]:
                state = steps[finishing[0]]
            else:
                state = steps["reserve", self.fresh[state][0]] if self.fresh[state] else steps["load", "a"]
        return False


@pytest.mark.timeout(0 if LONG else 300)
def test_every_interleaving_of_a_small_ledger_keeps_every_invariant(client, run, request):
    server = request.node.callspec.params["client"]
    for number, config in enumerate(LARGE if LONG else SMALL[server]):
        search, start = Search(client, f"{run}-{number}", *config), time.monotonic()
        search.run()
        assert all(map(search.head_becomes_ready, search.ended())), "liveness"
        print(
            f"{server}, (η, B, B', P) = {config}: {len(search.found)} states, {sum(map(len, search.found))} steps, "
            f"{len(search.ended())} states with nothing in flight, {time.monotonic() - start:.0f} s",
            flush=True,
        )
