"""The updates of a run, one line each in metrics.jsonl and one entry each in a stream; and where the time went.

line 11 ├ publish ┤├ ready ┤├ fetch ┤├ update ┤ line 12     one clock, which is in one place at any time: what
        └─────────── its `seconds` ───────────┘             line 12 says of its parts never exceeds the whole

{"version": 12, "batch": "9f3c…", "loss": …, "seconds": 9.1, "step_seconds": 6.2, "wait_seconds": {"ready": 2.4, …}}
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from pipeline import jsonl, keys
from pipeline.ledger_types import batch_digest
from pipeline.progress import record_metrics
from pipeline.redis_client import patient
from trainer.throughput import rates

WAITS = ("ready", "fetch", "publish", "checkpoint")  # why no update runs


class Record:
    """Kept by every rank; rank 0 alone calls `forget` and `write`."""

    def __init__(self, client: redis.Redis, run: str, file: Path, peak: float | None = None):
        """peak: FLOP/s of all ranks' devices, where it is known."""
        self.client, self.run, self.file, self.peak = client, run, file, peak
        self.spent: Counter[str] = Counter()  # seconds since the last line
        self.doing, self.since = "", time.monotonic()
        self.seconds: Counter[str] = Counter()  # of all lines
        self.totals: Counter[str] = Counter(updates=0)  # of whatever is a number in all lines
        self.last: dict[str, Any] = {}  # line
        self.publication: dict[str, float] = {}  # what the newest line with one says of it
        self.publish_bytes = 0  # of tensors, written since the last line
        self.checkpoint_seconds = 0.0  # that a thread took for those which became durable since the last line

    @contextmanager
    def timed(self, doing: str) -> Iterator[None]:
        """The time in here is that of an "update", or of one of WAITS."""
        before = self._switch(doing)
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, doing: str) -> str:
        now, before = time.monotonic(), self.doing
        self.spent[before] += now - self.since
        self.doing, self.since = doing, now
        return before

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

    def write(self, version: int, batch: Sequence[str], metrics: dict[str, Any]) -> dict[str, Any]:
        """Record update `version` and return its line. batch: the entries it was made from, in order; `headrace audit`
        holds them against those that the ledger handed out. step_seconds, tokens_per_second and mfu leave out the
        waiting."""
        self._switch(self.doing)
        spent, self.spent = self.spent, Counter()
        line = {"version": version, "step": version + 1, "time_ms": time.time_ns() // 1_000_000}
        line |= {"batch": batch_digest(batch), **metrics}
        line |= {
            "seconds": round(spent.total(), 4),
            "step_seconds": round(spent["update"], 4),
            "idle_seconds": round(spent["ready"], 4),
            "wait_seconds": {cause: round(spent[cause], 4) for cause in WAITS},
            "checkpoint_seconds": round(self.checkpoint_seconds, 4),
            **rates(metrics["tokens"], metrics["flops"], spent["update"], self.peak),
        }
        if "publish" in spent:
            self.publication = {"publish_seconds": round(spent["publish"], 4), "publish_bytes": self.publish_bytes}
            line |= self.publication
        self.checkpoint_seconds, self.publish_bytes = 0.0, 0
        self.seconds.update(spent)
        self.totals.update({"updates": 1} | {name: n for name, n in line.items() if isinstance(n, int | float)})
        self.last = line
        jsonl.append(self.file, line)  # first: should Redis stay away, the next checkpoint has this update all the same
        patient(lambda: record_metrics(self.client, self.run, line))
        return line
