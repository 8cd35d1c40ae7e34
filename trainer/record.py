"""The updates of a run, one line each in metrics.jsonl and one entry each in a stream; and where the time went.

timed("ready") ─┐
timed("fetch") ─┼─▶ write(version, batch, metrics) ─▶ {"version": 12, "batch": "9f3c…", "loss": …, "wait_seconds": {…}}
timed("publish")┘
"""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from pipeline import jsonl, keys
from pipeline.progress import record_metrics
from pipeline.redis_server import patient


class Record:
    """Kept by every rank; rank 0 alone calls `forget` and `write`."""

    def __init__(self, client: redis.Redis, run: str, file: Path):
        self.client, self.run, self.file = client, run, file
        self.waits: dict[str, float] = {}
        self.clock = time.monotonic()

    @contextmanager
    def timed(self, cause: str) -> Iterator[None]:
        """What happens in here was waited for, in the next line's `wait_seconds`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.waits[cause] = self.waits.get(cause, 0.0) + time.monotonic() - began

    def forget(self, version: int) -> None:
        """Drop updates from `version` on: they will be made, and recorded, again."""
        if self.file.exists():
            draft = self.file.with_suffix(".new")
            lines = (jsonl.as_line(line) for line in jsonl.read(self.file) if line["version"] < version)
            draft.write_bytes(b"".join(lines))
            draft.rename(self.file)
        patient(lambda: self._forget_entries(version))

    def _forget_entries(self, version: int) -> None:
        stream = keys.metrics(self.run)
        for entry, fields in self.client.xrevrange(stream):
            if json.loads(fields[b"json"])["version"] < version:
                break
            self.client.xdel(stream, entry)

    def write(self, version: int, batch: Sequence[str], metrics: dict[str, Any], step_seconds: float) -> dict[str, Any]:
        """Record update `version` and return its line. batch: the entries it was made from, in order; `headrace audit`
        holds them against those that the ledger handed out. tokens_per_second counts the waiting, step_seconds does
        not."""
        now = time.monotonic()
        elapsed, self.clock = now - self.clock, now
        waits, self.waits = self.waits, {}
        line = {"version": version, "step": version + 1, "time_ms": time.time_ns() // 1_000_000}
        line |= {"batch": hashlib.sha256(" ".join(batch).encode()).hexdigest()[:16], **metrics}
        line |= {
            "wait_seconds": {cause: round(seconds, 4) for cause, seconds in waits.items()},
            "idle_seconds": round(waits.get("ready", 0.0), 4),
            "step_seconds": round(step_seconds, 4),
            "tokens_per_second": round(metrics["tokens"] / elapsed, 1),
        }
        patient(lambda: record_metrics(self.client, self.run, line, self.file))
        return line
