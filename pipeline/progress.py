"""What every process is doing, for the person who watches: one hash a process, that is gone when the process is.

    hr:{run}:process:<name>   role, pid, host, waiting, since_ms, and numbers of the role (tokens_s, episodes, …)
    hr:{run}:processes        name -> when it is gone unless it is refreshed, in ms: the index of the above
    hr:{run}:metrics          stream, capped: one entry an update, field json; the same dict is a line of metrics.jsonl

`redis-cli HGETALL 'hr:{demo}:process:trainer'` answers "why is nothing happening?".
"""

import json
import os
import re
import socket
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from redis import Redis
from redis.exceptions import OutOfMemoryError

from pipeline import keys

EXPIRE_S = 30  # a process that is silent for longer, and did not say that it would be, is not shown
REFRESH_S = 0.5  # at most this often; a change between working and waiting is shown sooner
CHANGE_S = 0.1
MAX_METRICS = 10_000
TEXT = {b"role", b"host", b"waiting"}  # whatever they look like: a container's host may be called 1234567e8901


class Progress:
    """One process's own line. Call `waiting` or `working` as often as you like, in every pass of a loop."""

    def __init__(self, client: Redis, run: str, name: str, role: str):
        self._client, self._run, self._name = client, run, name
        self._fixed = {"role": role, "pid": os.getpid(), "host": socket.gethostname()}
        self._waits: bool | None = None
        self._cause: str | None = None  # of the wait: what its sentence begins with
        self._since_ms = 0
        self._written = -REFRESH_S
        self._shown_waits: bool | None = None
        self._numbers: dict[str, float | str] = {}

    def waiting(self, sentence: str, **numbers: float | str) -> None:
        """Nothing to do until something happens: what, have and need, such as "buffer 12: 40 of 64 occupied"."""
        self._refresh(sentence, numbers)

    def working(self, **numbers: float | str) -> None:
        """Busy; numbers stay shown until they are given again."""
        self._refresh("", numbers)

    def busy_for(self, quiet_s: float, **numbers: float | str) -> None:
        """Busy with one thing that does not call back, such as an update, and may take up to `quiet_s`."""
        self._written = -REFRESH_S  # it is the last word for long
        self._refresh("", numbers, quiet_s)

    def done(self) -> None:
        """The process ends; its line goes at once."""
        pipe = self._client.pipeline(transaction=False)  # a full Redis refuses every MULTI
        pipe.delete(keys.process(self._run, self._name))
        pipe.zrem(keys.processes(self._run), self._name)
        pipe.execute()

    def _refresh(self, sentence: str, numbers: dict[str, float | str], expire_s: float = EXPIRE_S) -> None:
        self._numbers |= numbers
        now, waits, cause = time.monotonic(), bool(sentence), re.split("[:(]", sentence)[0]
        if cause != self._cause:  # what follows are numbers, which change while it waits for the same
            self._waits, self._cause, self._since_ms = waits, cause, _now_ms()
        if now - self._written < (REFRESH_S if waits == self._shown_waits else CHANGE_S):
            return
        self._written, self._shown_waits = now, waits
        key, index = keys.process(self._run, self._name), keys.processes(self._run)
        pipe = self._client.pipeline()
        pipe.hset(key, mapping=self._fixed | {"waiting": sentence, "since_ms": self._since_ms} | self._numbers)
        pipe.pexpire(key, int(1000 * expire_s))
        pipe.zadd(index, {self._name: _now_ms() + int(1000 * expire_s)})
        pipe.zremrangebyscore(index, "-inf", _now_ms())
        with suppress(OutOfMemoryError):  # a full Redis shows nothing new; what would make room must go on
            pipe.execute()


def read_processes(client: Redis, run: str) -> list[dict[str, Any]]:
    """One dict a live process, in order of their names: name, role, pid, waiting ("" while it works), since_ms, …"""
    names = sorted(name.decode() for name in client.zrange(keys.processes(run), 0, -1))
    pipe = client.pipeline()
    for name in names:
        pipe.hgetall(keys.process(run, name))
    return [
        {"name": name} | {field.decode(): _value(field, value) for field, value in found.items()}
        for name, found in zip(names, pipe.execute(), strict=True)
        if found
    ]


def record_metrics(client: Redis, run: str, metrics: dict[str, Any]) -> None:
    """Add one update's metrics to the stream that the live display reads."""
    with suppress(OutOfMemoryError):
        client.xadd(keys.metrics(run), {"json": json.dumps(metrics)}, maxlen=MAX_METRICS, approximate=True)


def read_metrics(client: Redis, run: str, after: str = "0-0") -> tuple[list[dict[str, Any]], str]:
    """The updates recorded after the id `after`, and the id to continue from."""
    found = client.xrange(keys.metrics(run), min=f"({after}")
    return [json.loads(fields[b"json"]) for _, fields in found], found[-1][0].decode() if found else after


def read_shares(client: Redis, run: str, updates: int = 20) -> dict[str, float]:
    """Where the trainer's time went in the newest updates."""
    return time_shares(
        [json.loads(fields[b"json"]) for _, fields in client.xrevrange(keys.metrics(run), count=updates)]
    )


def last_metrics(client: Redis, run: str) -> dict[str, Any]:
    """The newest update; {} if there is none."""
    found = client.xrevrange(keys.metrics(run), count=1)
    return json.loads(found[0][1][b"json"]) if found else {}


def time_shares(lines: list[dict[str, Any]]) -> dict[str, float]:
    """As shares of the trainer's time in these updates: "update", and what it waited for."""
    lines = [line for line in lines if "wait_seconds" in line]
    whole = sum(line["seconds"] for line in lines)
    spent = Counter(update=sum(line["step_seconds"] for line in lines))
    for line in lines:
        spent.update(line["wait_seconds"])
    return {cause: round(seconds / whole, 3) for cause, seconds in spent.items()} if whole else {}


def _value(field: bytes, raw: bytes) -> str | int | float:
    text = raw.decode()
    for kind in () if field in TEXT else (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
