"""One transition of the ledger from the client's side: arguments in, answer or exception out.

    MULTI  XADD hr:{run}:trajectories:<worker> 1764500000123-0 payload …     payloads never pass through Lua
           EVALSHA occupy … "1764500000123-0"                                and their ids do
    EXEC   one round trip, atomic; but a refused Occupy does not undo the XADD, so the script deletes what it refuses

A full Redis refuses every MULTI: then alone the payloads go with the script, which may write all the same.
Ids are explicit, so that a transaction sent twice (a lost reply) adds nothing twice. One lock per worker incarnation
keeps ids in order on the way; should another client have written in between, the answer is ORDER and fresh ids follow.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import NoScriptError, OutOfMemoryError

from pipeline import errors, keys
from pipeline.scripts import Scripts

ORDER_ATTEMPTS = 100  # each means that another client wrote to the same worker's stream in between


class Transitions:
    """Runs the scripts of one run and remembers the newest (joined, version, head) they answered."""

    def __init__(self, client: redis.Redis, run: str, clock: Callable[[], int] | int | None):
        self.name, self.clock, self.scripts = run, clock, Scripts(client)
        self.seen = (0, 0, 0)  # joined (ms of the newest Join), version, head
        self.lock = threading.Lock()
        self.streams: dict[str, _Stream] = {}

    def run(self, name: str, *args: Any, extra: tuple[str, ...] = ()) -> tuple[str, list]:
        """(code, answer). Raises UnknownRun, RolledBack, Fenced."""
        return self._read(self.scripts.run(name, [*keys.fixed(self.name), *extra], [*self._prologue(), *args]))

    def occupy(
        self, worker: str, entry: str, payloads: list[bytes], claims: list, outcomes: list[str]
    ) -> tuple[str, list]:
        """MULTI [XADD …; occupy]. claims: prompt, version and oldest segment's version of the trajectories."""
        stream = keys.trajectories(self.name, worker)
        with self.lock:
            ids = self.streams.setdefault(worker, _Stream())
        with ids.lock:
            for _ in range(ORDER_ATTEMPTS):
                fresh = ids.take(len(payloads))
                adds = [("XADD", stream, i, "payload", p, "entry", entry) for i, p in zip(fresh, payloads, strict=True)]
                touched = [*keys.fixed(self.name), keys.entry(self.name, entry), stream]
                args = [*self._prologue(), entry, worker, *claims, " ".join(fresh), *outcomes]
                try:
                    answers, reply = self.scripts.run_after(adds, "occupy", touched, args)
                except OutOfMemoryError:  # a full Redis refuses the MULTI; what was admitted must get in all the same
                    answers, reply = [], self.scripts.run("occupy", touched, [*args, *payloads])
                if isinstance(reply, NoScriptError):  # it will be called again, with other ids
                    added = [i for i, answer in zip(fresh, answers, strict=True) if not isinstance(answer, Exception)]
                    if added:  # else they were there, and may be what an answer that was lost has accepted
                        self.scripts.client.xdel(stream, *added)
                    raise reply
                for answer in answers:
                    # a repetition finds its own ids there
                    if isinstance(answer, Exception) and "equal or smaller" not in str(answer):
                        raise answer
                code, answer = self._read(reply)
                if code != "ORDER":
                    return code, answer
                ids.newest = max(ids.newest, int(text(answer[0]).partition("-")[0]))
        raise errors.LedgerError(f"worker {worker!r}: another process writes to its stream; names must be unique")

    def _prologue(self) -> list:
        clock = self.clock() if callable(self.clock) else self.clock
        return ["" if clock is None else int(clock), *self.seen]

    def _read(self, reply: list) -> tuple[str, list]:
        code, joined, version, head, *answer = reply
        code = text(code)
        if code == "UNKNOWN_RUN":
            raise errors.UnknownRun(f"run {self.name!r} is not in this Redis: create it first, or check redis.url")
        if code == "ROLLED_BACK":
            raise errors.RolledBack(
                f"the ledger is at (version, head) {version, head}, this process saw {self.seen[1:]}: "
                "Redis lost writes; the trainer must join again"
            )
        if code == "FENCED":
            now = text(answer[0])
            raise errors.Fenced(f"trainer {now!r} joined after this one, which must end" if now else "join first")
        with self.lock:
            seen = self.seen
            if joined > seen[0]:
                self.seen = (joined, version, head)
            elif joined == seen[0]:
                self.seen = (joined, max(version, seen[1]), max(head, seen[2]))
        return code, answer


class _Stream:
    """Ids of one worker incarnation's stream: ms-0, ever growing; taken and sent under one lock."""

    def __init__(self):
        self.lock, self.newest = threading.Lock(), 0

    def take(self, count: int) -> list[str]:
        first = max(self.newest + 1, int(time.time() * 1000))
        self.newest = first + count - 1
        return [f"{n}-0" for n in range(first, first + count)]


def text(value: bytes | None) -> str:
    return value.decode() if value else ""
