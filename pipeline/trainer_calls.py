"""The ledger as the run's one trainer uses it: batches in, evidence and versions out. Part of Coordinator.

    join ─▶ consume v ─▶ fetch ─▶ (update v) ─▶ credit v ─▶ publish v+1 ─▶ checkpoint v+1
            peek                                └ with evidence "receipt" only

Each names the incarnation that joined last; any other is Fenced. A trainer that comes back repeats them: it gets the
same batches, and Replayed for what is credited or published already.
"""

from collections.abc import Callable, Iterable

import redis

from pipeline import errors, keys, memory
from pipeline.ledger_types import Batch, Credited, Joined, Published, Ref, Replayed
from pipeline.ledger_view import LedgerView
from pipeline.trajectory import Trajectory
from pipeline.transitions import Transitions, text


class TrainerCalls(LedgerView):
    """clock: a callable (or number) in ms, for tests only."""

    def __init__(self, client: redis.Redis, run: str, clock: Callable[[], int] | int | None = None):
        super().__init__(client, run)
        self._ledger = Transitions(client, run, clock)
        self._credited = (0, 0)  # the newest (joined, first version not credited) that this client saw

    def join(self, trainer: str, checkpoint: int, recent: Iterable[str] = ()) -> Joined:
        """Become the only trainer, at this checkpoint. recent: entries of its last max_staleness + 2 batches.

        With evidence "receipt" the caller goes on to credit from Joined.credited: a ledger that lost writes lacks
        credits of those batches too.
        """
        code, answer = self._ledger.run("join", trainer, checkpoint, *recent)
        if code == "MISSING":
            way = (
                f"go on from this one as a new run, `headrace fork {self.run} --from {checkpoint}`"
                if checkpoint
                else "begin a new run with weights of this one, as model.path"
            )
            raise errors.MissingBatch(
                f"batches below {answer[0]} are gone, found checkpoint {checkpoint}: resume from a newer one, or {way}"
            )
        joined, version, head = self._ledger.seen
        answer = Joined(version, head, *answer)
        self._credited = joined, answer.credited
        return answer

    def consume(self, trainer: str, version: int) -> Batch | None:
        """The batch of update `version`, always in the same order; None: not READY yet (wait for events)."""
        code, answer = self._ledger.run("consume", trainer, version)
        if code == "NOT_READY":
            return None
        if code == "MISSING":
            raise errors.MissingBatch(f"batch {version} is gone, the oldest kept is {answer[0]}")
        if code != "OK":
            todo = "publish first" if code == "PUBLISH_FIRST" else f"consume {self._ledger.seen[2]} first"
            raise errors.OutOfSequence(
                code, f"batch {version} cannot be consumed at (version, head) {self._ledger.seen[1:]}: {todo}"
            )
        return Batch(version, _refs(answer[0]))

    def peek(self, version: int) -> tuple[Ref, ...] | None:
        """The refs of a READY buffer; None: not READY. Changes nothing."""
        code, answer = self._ledger.run("peek", version)
        return _refs(answer[0]) if code == "OK" else None

    def fetch(self, refs: Iterable[Ref]) -> list[Trajectory]:
        """The trajectories, in the order of refs."""
        refs = list(refs)
        with self.client.pipeline(transaction=False) as pipe:
            for ref in refs:
                pipe.xrange(keys.trajectories(self.run, ref.stream), ref.id, ref.id)
            found = pipe.execute()
        for ref, rows in zip(refs, found, strict=True):
            if not rows:
                raise errors.MissingBatch(f"payload {ref.id} of entry {ref.entry!r} is gone: a checkpoint covers it")
        return [Trajectory.decode(rows[0][1][b"payload"]) for rows in found]

    def credit(self, trainer: str, version: int, credits: Iterable[tuple[str, float, float]]) -> Credited | Replayed:
        """What update `version` was trained on becomes evidence: alpha <- retention · alpha + outcome, beta likewise.

        credits: (prompt, retention in (0, 1], outcome in [0, 1]) of each trajectory, in the batch's order; a prompt may
        come again. Raises BadCredit and then has written nothing. arXiv 2509.13232.
        """
        flat: list = []
        for prompt, retention, outcome in credits:
            if not 0 < retention <= 1:
                raise errors.BadCredit(
                    "RETENTION", f"prompt {prompt!r}: expected a retention in (0, 1], found {retention}"
                )
            if not 0 <= outcome <= 1:
                raise errors.BadCredit("OUTCOME", f"prompt {prompt!r}: expected an outcome in [0, 1], found {outcome}")
            flat += [prompt, repr(float(retention)), repr(float(outcome))]
        code, answer = self._ledger.run("credit", trainer, version, *flat)
        if code == "PROMPT":
            raise errors.BadCredit(
                code, f"expected prompts of run {self.run!r}, found {text(answer[0])!r}: credit what was consumed"
            )
        if code == "NO_EVIDENCE":
            raise errors.BadCredit(
                code, f'run {self.run!r} counts outcomes at their Occupy: only evidence = "receipt" is credited'
            )
        if code == "AHEAD":
            raise errors.OutOfSequence(code, f"update {version} cannot be credited: its batch was not consumed yet")
        if code == "UNCREDITED":
            raise self._uncredited(f"update {version} cannot be credited", answer[0])
        self._credited = max(self._credited, (self._ledger.seen[0], version + 1))
        return Credited() if code == "CREDITED" else Replayed()

    def publish(self, trainer: str, version: int, path: str, digest: str, last: bool = False) -> Published | Replayed:
        """The weights of `version` are out. last: the run's last update, which need not fill publish_every."""
        code, answer = self._ledger.run("publish", trainer, version, path, digest, int(last))
        if code == "EARLY":
            raise errors.OutOfSequence(
                code, f"version {version} cannot be published at (version, head) {self._ledger.seen[1:]}: consume first"
            )
        if code == "UNCREDITED":
            raise self._uncredited(f"version {version} cannot be published", answer[0])
        return Published(answer[0]) if code == "PUBLISHED" else Replayed()

    def checkpoint(self, trainer: str, version: int) -> int:
        """Updates < version are durable. Returns the oldest batch that is kept."""
        code, answer = self._ledger.run("checkpoint", trainer, version, int(memory.is_full(self.client)))
        if code == "AHEAD":
            raise errors.OutOfSequence(code, f"checkpoint {version} is ahead of the next batch, {self._ledger.seen[2]}")
        return answer[0]

    def _uncredited(self, what: str, credited: int) -> errors.LedgerError:
        """A credit changes neither version nor head, so that its loss shows only here."""
        if (self._ledger.seen[0], credited) < self._credited:
            return errors.RolledBack(
                f"the ledger has the credits of updates below {credited}, this process saw those below "
                f"{self._credited[1]}: Redis lost writes; the trainer must join again"
            )
        return errors.OutOfSequence("UNCREDITED", f"{what}: credit update {credited} first")


def _refs(flat: list) -> tuple[Ref, ...]:
    triples = zip(*[iter(map(text, flat))] * 3, strict=True)
    return tuple(Ref(entry, m, stream, i) for entry, stream, ids in triples for m, i in enumerate(ids.split()))
