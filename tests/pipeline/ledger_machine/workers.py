"""Rules of the workers: they reserve, finish, give back, forget, repeat, come late, and die."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from pipeline.coordinator import Placed, Refused, Surplus
from pipeline.ledger_types import Reservation
from pipeline.transitions import _Stream
from tests.fixtures_ledger import trajectory
from tests.pipeline.ledger_machine.base import Machine, either, engine, few, outcomes, pick, some, worker
from tests.pipeline.ledger_machine.invariants import Contents


class Workers(Machine):
    """What workers do, and what happens to them."""

    @rule(i=either, w=worker, e=engine, times=st.integers(1, 4))
    def reserve(self, i, w, e, times):
        for _ in range(times):
            self.reserve_one(i, f"n{next(self.names)}", self.workers[w], f"e{e}")

    @precondition(lambda self: self.known)
    @rule(i=either, n=pick, w=worker, e=engine)
    def reserve_again(self, i, n, w, e):
        name = some(self.known, n)
        if name in self.model.entries:
            self.reserve_one(i, name, self.workers[w], f"e{e}")

    def reserve_one(self, i, name, worker, engine):
        def model(answer):
            return self.model.reserve(name, worker, engine, self.d.ms, getattr(answer, "prompt", None))

        answer = self.call(i, lambda c: c.reserve(worker, engine, name), model)
        if isinstance(answer, Reservation):
            self.known[name] = answer

    @precondition(lambda self: self.model.running())
    @rule(i=either, n=pick, outcomes=outcomes)
    def finish(self, i, n, outcomes):
        self.occupy(i, some([e.name for e in self.model.running()], n), outcomes)

    @precondition(lambda self: self.known)
    @rule(i=either, n=pick, outcomes=outcomes)
    def finish_late(self, i, n, outcomes):
        self.occupy(i, some(self.known, n), outcomes)

    def occupy(self, i, name, outcomes):
        outcomes = outcomes[: self.model.rules.group_size]
        r, c = self.known[name], self.clients[i]
        sent = len(c._ledger.scripts.transactions)
        answer = self.call(i, lambda c: self.d.finish(r, outcomes, c), lambda _: self.model.occupy(name, outcomes))
        if len(c._ledger.scripts.transactions) == sent:
            assert answer == Refused("GONE")  # nobody knows whose it was
        elif isinstance(answer, Placed) and self.model.entries[name].state == "OCCUPIED":
            assert answer.buffer <= r.deadline, "bound: never later than reserved"
        elif answer == Surplus():
            assert self.model.rules.buffer_capacity > self.model.rules.batch_size, "nothing finished is thrown away"

    @precondition(lambda self: self.model.running())
    @rule(i=either, n=pick, what=st.sampled_from(["prompt_id", "version", "member", "segments"]))
    def finish_badly(self, i, n, what):
        """What no entry may be filled with is refused, and the entry stays."""
        name = some([e.name for e in self.model.running()], n)
        r, size = self.known[name], self.model.rules.group_size
        newer = {"version": r.version + 1, "segments": [(1, 2, "e0", r.version + 1)]}
        older = [(1, 1, "e0", r.version), (2, 1, "e0", r.version - 1)]
        changes = {"prompt_id": {"prompt_id": "p99"}, "version": newer, "segments": {"segments": older}}.get(what, {})
        codes = {"prompt_id": "PROMPT", "version": "VERSION", "member": "GROUP", "segments": Refused("OLD")}
        if self.lacks(self.clients[i]._ledger.seen) or (what == "segments" and r.version == 0):
            return  # the client looks at the trajectories itself first, and there is no version before 0
        group = [trajectory(r, member=m, **changes) for m in range(size + (what == "member"))]
        self.call(i, lambda c: c.occupy(name, group), lambda _: codes[what])

    @precondition(lambda self: self.transactions())
    @rule(n=pick)
    def transaction_arrives_late(self, n):
        """MULTI [XADD …; occupy], once more, as it was sent."""
        args = some(self.transactions(), n)
        seen, (name, owner, _, _, _, ids), outcomes = args[3][1:4], args[3][4:10], args[3][10:]
        found = Contents(self.run, self.look())
        entry, newest = self.model.entries.get(name), found.hashes.get(("worker", owner), {}).get("last_id", "0-0")
        own = entry and entry.worker == owner and found.of("entry")[name].get("ids") == ids
        first = int(ids.split()[0].partition("-")[0])
        reply = self.d.c._ledger.scripts.run_after(*args)[1]
        self.contents = None
        if not own and first <= int(newest.partition("-")[0]):
            expected = "ORDER"
        elif self.lacks(seen):
            expected = "ROLLED_BACK"
        elif entry is None or entry.worker != owner:
            expected = "GONE"
        else:
            answer = self.model.occupy(name, [float(o) for o in outcomes[: self.model.rules.group_size]])
            expected = getattr(answer, "reason", type(answer).__name__.upper())
        assert reply[0].decode() == expected

    def transactions(self):
        return [args for c in self.clients for args in c._ledger.scripts.transactions]

    @rule(i=either, w=worker, ahead=st.integers(-3, 2))
    def ids_of_a_worker_are_out_of_order(self, i, w, ahead):
        """Another task of the same worker takes ids that overlap with those sent already."""
        found = Contents(self.run, self.contents or self.look())
        newest = found.hashes.get(("worker", self.workers[w]), {}).get("last_id", "0")
        ids = self.clients[i]._ledger.streams.setdefault(self.workers[w], _Stream())
        ids.newest = max(2**42, int(newest.partition("-")[0]) + ahead)  # a time that has not come yet

    @precondition(lambda self: self.known)
    @rule(i=either, n=pick, reason=st.sampled_from(["failed", "retry", "cancelled", "lost"]))
    def release(self, i, n, reason):
        name = some([e.name for e in self.model.running()] or self.known, n)
        self.call(i, lambda c: c.release(name, reason), lambda _: self.model.release(name, reason), lambda _: False)

    @rule(i=either, w=worker, but=few, stray=few)
    def renew(self, i, w, but, stray):
        """The worker may have forgotten one of its entries, and may hold a stray one."""
        worker = self.workers[w]
        names = [e.name for e in self.model.running() if e.worker == worker]
        del names[but : but + 1]
        names += [*list(self.known)[-12:][stray : stray + 1], "never-heard-of"]

        def send(c):
            commands = c.renew(worker, names)
            return set(commands.cancelled), set(commands.truncate), commands.drain

        self.call(i, send, lambda _: self.model.renew(worker, names, self.d.ms), lambda first: first)

    @rule(i=either, w=worker)
    def crash(self, i, w):
        """A process dies, and its worker: what they remember is gone. The next incarnation has another name."""
        self.clients[i] = self.new_client()
        self.workers[w] = f"w{w}-{next(self.incarnations)}"
