"""What all rules stand on: two clients of one run, the wire between, the model beside it, and how a call is judged."""

import itertools
import random

import redis
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from pipeline import keys
from pipeline.coordinator import Refused
from pipeline.errors import HeadraceError
from pipeline.ledger_types import Reservation
from tests.fixtures_ledger import TRAINER, Driver
from tests.pipeline.ledger_machine.agreement import agree, same, written
from tests.pipeline.ledger_machine.invariants import Contents, check
from tests.pipeline.ledger_machine.model import Model

REFUSALS = {"FENCED", "MISSING", "NOT_HEAD", "PUBLISH_FIRST", "EARLY", "AHEAD", "UNCREDITED", "NO_EVIDENCE"}
REFUSALS |= {"PROMPT", "VERSION", "GROUP", "ROLLED_BACK"}

pick = st.integers(0, 999)
few = st.integers(0, 20)  # one of the last twelve, or none
either = st.integers(0, 1)
worker = st.integers(0, 1)
engine = st.integers(0, 2)
outcomes = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=3)


@st.composite
def rules(draw):
    eta, batch_size, group_size = draw(st.integers(0, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    capacity, launch = batch_size + draw(st.sampled_from([0, 0, 1, 2])), group_size + draw(st.integers(0, 1))
    budget = draw(st.sampled_from([0, 0, 0, 1, 2, 4]))
    return {
        "max_staleness": eta,
        "batch_size": batch_size,
        "buffer_capacity": capacity,
        "group_size": group_size,
        "group_launch": launch,
        "publish_every": draw(st.integers(1, min(3, eta + 1))),
        "sampler": draw(st.sampled_from(["uncertainty", "shuffle"])),
        "evidence": draw(st.sampled_from(["event", "receipt"])),
        "byte_budget": budget * capacity * launch * 4096,
        "max_trajectory_bytes": 4096,
        "max_age_s": draw(st.sampled_from([30, 600])),
        "max_attempts": draw(st.sampled_from([2, 50])),
        "max_lost": draw(st.sampled_from([2, 50])),
        "max_consecutive_failures": draw(st.sampled_from([3, 100])),
        "max_consecutive_filtered": draw(st.sampled_from([3, 1000])),
        "filter_metric": draw(st.sampled_from([None, "score", "acc", "seq_reward"])),
        "proactive": draw(st.sampled_from([None, "retry", "truncate"])),
        "proactive_threshold": draw(st.integers(1, 4)),
        "proactive_patience_s": 10,
    }


class Wire:
    """Scripts, over a network: a reply may be lost, and redis-py may send again by itself."""

    def __init__(self, scripts):
        self.scripts, self.fault, self.repeated, self.transactions = scripts, None, False, []

    def run(self, *args):
        return self._send(self.scripts.run, args)

    def run_after(self, *args):
        self.transactions.append(args)
        return self._send(self.scripts.run_after, args)

    def _send(self, send, args):
        fault, self.fault = self.fault, None
        self.repeated = self.repeated or fault is not None
        reply = send(*args)
        if fault == "lost":
            raise redis.ConnectionError("the reply was lost")
        return send(*args) if fault == "twice" else reply


class Machine(RuleBasedStateMachine):
    """What processes know is here; what the ledger must hold is in the model."""

    def __init__(self, client, run):
        super().__init__()
        self.client, self.run = client, run

    @initialize(rules=rules(), prompts=st.integers(1, 12))
    def begin(self, rules, prompts):
        note(f"rules = {rules}")
        self.d = Driver(self.client, self.run, prompts, **rules)
        self.model = Model(rules, [f"p{i}" for i in range(prompts)])
        self.clients = [self.new_client() for _ in range(2)]
        self.workers, self.names, self.incarnations = ["w0", "w1"], itertools.count(), itertools.count()
        self.known: dict[str, Reservation] = {}  # what workers hold, or held
        self.trainer, self.trainers = TRAINER, [TRAINER]
        self.trained: list[list[str]] = []  # the trainer's batches, which it remembers whatever Redis loses
        self.durable = {0}  # its checkpoints
        self.before, self.on_disk, self.contents = (0, 0, 0), None, None
        self.model.join(TRAINER, 0, [])
        self.d.c.reap()  # from now on the ledger knows which Redis it is in
        self.model.joined = int(self.d.c.fields()["joined"])
        for name in ("e0", "e1", "e2"):
            self.d.c.register_engine(name, 0)
            self.model.load(name, 0)

    def new_client(self):
        c = self.d.new_client()
        c._ledger.scripts = Wire(c._ledger.scripts)
        return c

    def call(self, i, send, model, again=None, apart=(), behind=None, unchanged=True):
        """Send a transition through client i, and once more. Returns the first answer.

        model(answer): what the answer must be; again(that): what the repetition's must be; apart: keys that a
        repetition may write; behind: whether the ledger lacks what this client saw.
        """
        c, before = self.clients[i], self.contents or self.look()
        wire = c._ledger.scripts
        wire.repeated = False
        behind = self.lacks(c._ledger.seen) if behind is None else behind
        answer = outcome_of(send, c)
        if behind:  # a client that does not know an entry's worker need not ask to answer GONE
            assert answer in ("ROLLED_BACK", Refused("GONE")), f"{answer}, expected ROLLED_BACK"
            assert written(self.look()) == written(before), "refusal writes nothing"
            return answer
        expected = model(answer)
        if wire.repeated and again:
            expected = again(expected)
        assert same(answer, expected), f"{answer}, expected {expected}"
        after = self.look()
        if isinstance(answer, Refused) or (isinstance(answer, str) and answer in REFUSALS):
            assert written(after) == written(before), "refusal writes nothing"
        if again:
            expected = again(expected)
        repetition = outcome_of(send, c)
        assert same(repetition, expected), f"sent again: {repetition}, expected {expected}"
        if self.look() != after and unchanged:
            assert written(self.contents, apart) == written(after, apart), "sent again, it changed something"
        return answer

    def look(self):
        """All that Redis holds of the run; kept until the next look, for all that writes looks afterwards."""
        self.contents = self.d.everything()
        return self.contents

    def command(self, i, send, effect):
        """A call that has no answer; each rings the bell."""
        self.call(i, send, lambda _: effect(), lambda _: None, apart=(keys.events(self.run),))

    def lacks(self, seen):
        """Does the ledger lack what this (joined, version, head) saw?"""
        joined, *now = self.model.joined, self.model.version, self.model.head
        return joined < seen[0] or (joined == seen[0] and any(n < s for n, s in zip(now, seen[1:], strict=True)))

    @invariant()
    def every_invariant_holds_and_the_model_agrees(self):
        found, model = Contents(self.run, self.contents or self.look()), self.model
        check(found, model.rules, self.before)
        self.before = found.now
        agree(found, model)

    def teardown(self):
        if hasattr(self, "d"):
            self.head_becomes_ready()

    def head_becomes_ready(self):
        """liveness, whoever died before: a new trainer, a new worker, a new engine, and what is in flight ends."""
        c = self.clients[0] = self.new_client()
        c.join("last", len(self.trained), [entry for batch in self.trained for entry in batch])
        c.resume()
        for n, name in enumerate(self.d.c.client.zrange(keys.reserved(self.run), 0, -1)):
            name = name.decode()
            if n % 2 or name not in self.known or self.d.finish(self.known[name], self.group(), c) == Refused("GONE"):
                c.release(name, "cancelled")
        rules = self.model.rules
        for _ in range(2 * rules.batch_size + 2):
            fields = c.fields()
            head, now = int(fields["head"]), int(fields["version"])
            for version in range(int(fields["credited"]), head if rules.evidence == "receipt" else 0):
                c.credit("last", version, self.credits_of(version, self.batch(c, version)))
            if head >= now + rules.publish_every:
                c.publish("last", head, "weights", "digest")
                now = head
            c.checkpoint("last", head)
            if self.d.buffer(head).state.startswith("READY"):
                assert c.consume("last", head)
                return
            c.register_engine("last", now)
            r = c.reserve("last", "last")
            assert isinstance(r, Reservation), f"liveness: {r}, {self.d.c.buffers()}"
            self.known[r.entry] = r
            self.d.finish(r, self.group(), c)
            check(Contents(self.run, self.d.everything()), rules, (0, 0, 0))
        raise AssertionError(f"liveness: {self.d.c.buffers()}")

    def batch(self, c, version):
        """The entries of a batch that the last trainer has trained, or gets again."""
        if version < len(self.trained):
            return self.trained[version]
        return list(dict.fromkeys(ref.entry for ref in c.consume("last", version).refs))

    def credits_of(self, version, entries):
        """One for each trajectory; the same whenever this batch is trained."""
        numbers, members = random.Random(f"{version} {entries}"), self.model.rules.group_size
        trained = sorted((self.known[entry].version, self.known[entry].prompt) for entry in entries)
        prompts = [prompt for _, prompt in trained for _ in range(members)]
        return [(p, numbers.choice([1.0, 0.96, 0.875, 0.5]), numbers.choice([0.0, 0.5, 1.0])) for p in prompts]

    def group(self):
        """Outcomes that no filter drops."""
        return [0.0, 1.0, 0.5][: self.model.rules.group_size]


def some(names, n):
    return list(names)[n % len(names)]


def outcome_of(send, c):
    """The answer, or the code of what was raised; after a lost reply, of the call sent again."""
    try:
        return send(c)
    except redis.ConnectionError:
        return outcome_of(send, c)
    except HeadraceError as error:
        return error.code
