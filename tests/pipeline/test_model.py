"""The ledger against a model of its rules that fits on a page, for N = 1 and B' = B: same answers, same buffers.

The model keeps no sums: whether everybody in flight can be placed in time it finds out by placing them, one after the
other, the most urgent first. So admission too many, a place too late, and a move forgotten are all seen.
"""

import itertools
import random

import fakeredis
import pytest

from pipeline.coordinator import Placed, Refused
from tests.fixtures_ledger import TRAINER, Driver

PROMPTS, STEPS = 30, 50
WEIGHTS = {"reserve": 5, "finish": 4, "release": 3, "update": 4, "load": 3}


class Model:
    """occupied: buffer -> [(V_traj, finishing number, entry)]; running: entry -> Reservation."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.eta, self.B, self.version, self.head = self.random.randint(0, 3), self.random.randint(1, 2), 0, 0
        self.occupied, self.running, self.finished = {}, {}, itertools.count()
        self.engines = dict.fromkeys(("e0", "e1"), 0)
        self.d = Driver(fakeredis.FakeRedis(), "model", PROMPTS, max_staleness=self.eta, batch_size=self.B)
        for engine in self.engines:
            self.d.c.register_engine(engine, 0)

    # -- the model ----------------------------------------------------------------------------------------------------

    def window(self):
        return range(self.head, self.version + self.eta + 1)

    def open(self, b):
        return self.B - len(self.occupied.get(b, ()))

    def placeable(self, deadlines, taken=()):
        """Can each of the deadlines have a place of its own, no later than itself, besides the places `taken`?"""
        places = [b for b in self.window() for _ in range(self.open(b) - taken.count(b))]
        for deadline in sorted(deadlines):
            if not places or places[0] > deadline:
                return False
            places.pop(0)
        return True

    def deadlines(self):
        return [r.deadline for r in self.running.values()]

    def earliest(self, last, others):
        """The first place up to `last` which leaves the others placeable."""
        fits = (b for b in self.window() if b <= last and self.open(b) and self.placeable(others, (b,)))
        return next(fits, None)

    def settle(self):
        """Surplus and pull forward, until nothing changes."""
        while True:
            ready = list(itertools.takewhile(lambda b: not self.open(b), self.window()))
            surplus = [entry for entry, r in self.running.items() if ready and r.deadline <= ready[-1]]
            for entry in surplus:
                del self.running[entry]
            if not surplus and not self.pull_forward():
                return

    def pull_forward(self):
        for b in self.window():
            later = sorted((score, c) for c in self.window() if c > b for score in self.occupied.get(c, ()))
            for score, c in later if self.open(b) else ():
                self.occupied[c].remove(score)
                if self.placeable(self.deadlines(), (b,)):
                    self.occupied.setdefault(b, []).append(score)
                    return True
                self.occupied[c].append(score)
        return False

    # -- what happens -------------------------------------------------------------------------------------------------

    def reserve(self):
        for _ in range(self.random.randint(1, 4)):
            engine = self.random.choice(list(self.engines))
            deadline = self.engines[engine] + self.eta
            if deadline < self.head:
                expected = "STALE"
            else:
                expected = "OK" if self.placeable([*self.deadlines(), deadline]) else "FULL"
            answer = self.d.reserve(engine=engine)
            assert (answer.reason if isinstance(answer, Refused) else "OK") == expected
            if expected == "OK":
                assert (answer.version, answer.deadline) == (self.engines[engine], deadline)
                self.running[answer.entry] = answer

    def finish(self):
        for r in self.some():
            del self.running[r.entry]
            place = self.earliest(r.deadline, self.deadlines())
            assert place is not None, "with B' = B nothing finished is thrown away"
            self.occupied.setdefault(place, []).append((r.version, next(self.finished), r.entry))
            assert self.d.finish(r) == Placed(place)
            self.settle()

    def release(self):
        for r in self.some():
            del self.running[r.entry]
            self.d.c.release(r.entry, "cancelled")
            self.settle()

    def some(self):
        running = list(self.running.values())
        return self.random.sample(running, self.random.randint(0, len(running)))

    def update(self):
        if self.head == self.version:
            batch = self.d.c.consume(TRAINER, self.head)
            assert (batch is None) == bool(self.open(self.head))
            if batch:
                assert [ref.entry for ref in batch.refs] == [e for *_, e in sorted(self.occupied.pop(self.head))]
                self.head += 1
                self.settle()
        elif self.random.random() < 0.8:
            self.d.c.publish(TRAINER, self.head, "weights", "")
            self.version = self.head
            self.settle()

    def load(self):
        engine = self.random.choice(list(self.engines))
        self.d.c.register_engine(engine, self.version)
        self.engines[engine] = self.version

    def check(self):
        shown = [(b.id, b.occupied, b.due) for b in self.d.c.buffers() if b.id >= self.head]
        due = self.deadlines()
        assert shown == [(b, self.B - self.open(b), due.count(b)) for b in self.window()]


@pytest.mark.parametrize("seed", range(30))
def test_the_ledger_answers_as_its_model_does(seed):
    model = Model(seed)
    for name in model.random.choices(list(WEIGHTS), WEIGHTS.values(), k=STEPS):
        getattr(model, name)()
        model.check()
