"""A run in its steady state, whose transitions are recorded first and sent later, so that only sending is measured.

    between blocks   batch_size entries in flight, and head partly OCCUPIED
    reserve          BLOCK new ones
    occupy           the BLOCK oldest; the XADDs of their payloads were sent before, unmeasured
    update           whenever head is READY: consume, publish, checkpoint, the engine's new version; unmeasured

What is sent is what pipeline/coordinator.py sends, argument for argument: the recorder notes it in Redis's place.
"""

import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import redis

from tests.bench.ledger import new_run, update
from tests.fixtures_ledger import ENGINE, WORKER, trajectory

BLOCK = 32


@dataclass(frozen=True)
class Call:
    """One transition, ready to be sent: the commands of its MULTI that go before it, then its EVALSHA."""

    before: list[tuple]
    sha: str
    keys: list[str]
    args: list


class Recorder:
    """In the place of pipeline.scripts.Scripts: notes the call, and answers with a refusal, which leaves no trace."""

    def __init__(self, sha: dict[str, str], seen: tuple[int, int, int]):
        self.sha, self.calls = sha, []
        self.answer = [b"GONE", *seen]

    def run(self, name: str, keys: list[str], args: list) -> list:
        return self.run_after([], name, keys, args)[1]

    def run_after(self, commands: list[tuple], name: str, keys: list[str], args: list) -> tuple[list, list]:
        self.calls.append(Call(commands, self.sha[name], keys, args))
        return [], self.answer


class SteadyRun:
    """settings: the ledger's. idle: prompts that are idle when all that may be in flight is in flight."""

    def __init__(self, client: redis.Redis, idle: int = 5000, **settings):
        self.client, self.batch_size = client, settings["batch_size"]
        self.c = new_run(client, self.batch_size + BLOCK + idle, **settings)
        self.head = self.occupied = 0
        self.in_flight = deque(self.c.reserve(WORKER, ENGINE) for _ in range(self.batch_size))

    def reserve(self, send: Callable[[list[Call]], list[list]]) -> None:
        """BLOCK reservations. send: sends all calls and returns their answers; it alone should be measured."""
        entries = [uuid.uuid4().hex for _ in range(BLOCK)]
        with self._recorded() as calls:
            for entry in entries:
                self.c.reserve(WORKER, ENGINE, entry)
        _expect("OK", send(calls))
        self.in_flight.extend(self.c.reserve(WORKER, ENGINE, entry) for entry in entries)  # the same answers again

    def occupy(self, send: Callable[[list[Call]], list[list]]) -> None:
        """BLOCK entries are finished, oldest first; then as many updates as are READY, unmeasured."""
        with self._recorded() as calls:
            for r in [self.in_flight.popleft() for _ in range(BLOCK)]:
                self.c.occupy(r.entry, [trajectory(r)])
        with self.client.pipeline(transaction=False) as pipe:
            for call in calls:
                for command in call.before:
                    pipe.execute_command(*command)
            pipe.execute()
        _expect("PLACED", send(calls))
        self.occupied += BLOCK
        while self.occupied >= self.batch_size:
            update(self.c, self.head)
            self.head += 1
            self.occupied -= self.batch_size

    @contextmanager
    def _recorded(self) -> Iterator[list[Call]]:
        ledger = self.c._ledger
        scripts, ledger.scripts = ledger.scripts, Recorder(ledger.scripts.sha, ledger.seen)
        try:
            yield ledger.scripts.calls
        finally:
            ledger.scripts = scripts


def _expect(code: str, answers: list[list]) -> None:
    found = {answer[0].decode() for answer in answers}
    if found != {code}:
        raise RuntimeError(
            f"expected {code} of every call, found {', '.join(sorted(found))}: it measures something else"
        )
