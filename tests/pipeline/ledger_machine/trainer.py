"""Rules of the trainers: one trains, comes back at a checkpoint, is replaced; old ones are fenced."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import rule

from pipeline import keys
from pipeline.coordinator import Credited, Published, Replayed
from tests.pipeline.ledger_machine.base import REFUSALS, Machine, either, few, pick, some


class Trainers(Machine):
    """What trainers do, and what happens to them."""

    @rule(i=either, back=st.sampled_from([0, 0, 0, 0, 1, 2, -1]))
    def consume(self, i, back):
        """The next batch; or an older one again; or one too early."""
        version = len(self.trained) - back
        if version < 0 or (version != len(self.trained) and version == self.model.head):
            return
        refs = []

        def send(c):
            batch = c.consume(self.trainer, version)
            refs[:] = batch.refs if batch else ()
            return batch and list(dict.fromkeys(ref.entry for ref in batch.refs))

        batch = self.call(i, send, lambda _: self.model.consume(self.trainer, version))
        if not isinstance(batch, list):
            return
        found, eta = self.d.c.fetch(refs), self.model.rules.max_staleness
        assert [(t.entry, t.member) for t in found] == [(r.entry, r.member) for r in refs], "payload"
        assert all(version - s.version <= eta for t in found for s in t.segments), "bound"
        assert [e for e in batch for _ in range(self.model.rules.group_size)] == [t.entry for t in found], "payload"
        if version < len(self.trained):
            assert batch == self.trained[version], "order"
        elif version == len(self.trained):
            assert not {e for b in self.trained for e in b} & set(batch), "once"
            self.trained.append(batch)

    @rule(i=either, ahead=st.integers(-2, 2))
    def peek(self, i, ahead):
        version = max(self.model.head + ahead, 0)

        def send(c):
            refs = c.peek(version)
            return refs and list(dict.fromkeys(ref.entry for ref in refs))

        kept = version >= self.model.oldest and self.model.ready(version)
        self.call(i, send, lambda _: [e.name for e in self.model.members(version)] if kept else None)

    @rule(i=either, back=st.sampled_from([0, 0, 0, 1, -1]))
    def publish(self, i, back):
        version = max(len(self.trained) - back, 0)

        self.call(
            i,
            lambda c: c.publish(self.trainer, version, f"weights/{version}-{self.trainer}", "digest"),
            lambda _: self.or_rolled_back(i, self.model.publish(self.trainer, version)),
            replayed,
        )

    @rule(i=either, back=st.sampled_from([0, 0, 0, 0, 1, -1]), stray=st.sampled_from([False, False, False, True]))
    def credit(self, i, back, stray):
        """The next update that is not credited, an older one again, or one too early; perhaps with a stray prompt."""
        version = max(self.model.credited - back, 0)
        if len(self.trained) <= version < self.model.head:
            return  # it has not trained this batch, or not yet again
        credits = self.credits_of(version, self.trained[version]) if version < len(self.trained) else []
        credits += [("nobody", 0.5, 0.5)] * stray
        self.call(
            i,
            lambda c: c.credit(self.trainer, version, credits),
            lambda _: self.or_rolled_back(i, self.model.credit(self.trainer, version, credits)),
            replayed,
        )

    def credit_all(self, i):
        for _ in range(self.model.credited, len(self.trained)):
            self.credit(i, 0, False)

    def or_rolled_back(self, i, answer):
        """A client that saw a credit which the ledger lacks says so, where the credit is missed."""
        seen = self.clients[i]._credited
        lost = answer == "UNCREDITED" and (self.model.joined, self.model.credited) < seen
        return "ROLLED_BACK" if lost else answer

    @rule(i=either, back=st.integers(0, 2))
    def checkpoint(self, i, back):
        version = max(len(self.trained) - back, 0)
        oldest = self.call(
            i,
            lambda c: c.checkpoint(self.trainer, version),
            lambda _: self.model.checkpoint(self.trainer, version),
        )
        if isinstance(oldest, int):
            self.durable.add(version)

    @rule(i=either, n=pick, restarted=st.booleans(), stray=few)
    def join(self, i, n, restarted, stray):
        """Restarted, at one of its checkpoints, a trainer is a new incarnation; else it joins with all that it has.
        It may have trained on one more entry, which the ledger has where it does not expect it."""
        trainer = f"t{next(self.incarnations)}" if restarted else self.trainer
        version = some(sorted(self.durable), n) if restarted else len(self.trained)
        recent = self.trained[max(version - self.model.rules.max_staleness - 2, 0) : version]
        recent = [entry for batch in recent for entry in batch] + list(self.known)[-12:][stray : stray + 1]
        joined = self.call(
            i,
            lambda c: c.join(trainer, version, recent),
            lambda _: self.model.join(trainer, version, recent),
            lambda first: first if first in REFUSALS else replace(first, dropped=0, released=0),
            apart=(keys.run(self.run), keys.events(self.run), keys.trainers(self.run)),  # the newest Join
            behind=False,
        )
        if joined in REFUSALS:
            return
        self.model.joined = int(self.d.c.fields()["joined"])
        self.trainer, self.trained = trainer, self.trained[:version]
        self.trainers.append(trainer)
        self.durable = {version} | {v for v in self.durable if v < version}

    @rule(i=either, n=pick, what=st.sampled_from(["consume", "credit", "publish", "checkpoint", "join"]))
    def an_old_trainer_comes_back(self, i, n, what):
        trainer, head = some(self.trainers, n), self.model.head
        if trainer == self.model.trainer or (what == "join" and trainer not in self.model.trainers):
            return
        calls = {
            "consume": lambda c: c.consume(trainer, head),
            "credit": lambda c: c.credit(trainer, head, []),
            "publish": lambda c: c.publish(trainer, head, "weights", ""),
            "checkpoint": lambda c: c.checkpoint(trainer, head),
            "join": lambda c: c.join(trainer, head),
        }
        self.call(i, calls[what], lambda _: "FENCED", behind=None if what != "join" else False)


def replayed(answer):
    return Replayed() if isinstance(answer, Credited | Published) else answer
