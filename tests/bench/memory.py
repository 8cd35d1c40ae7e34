"""Whether Redis is as large after 50 batches as it was before them: what a run leaves behind, and how long.

    until the events' stream is at its cap │ 50 batches: 128 entries of 1,000 tokens, 2 more released per batch
                                        before                                                             after

`before` is the steady state: one batch kept for replay, and as many events as the archive keeps. What is allowed to
remain are the tombstones of what was released, which live for an hour; they are counted and named.
"""

import tempfile
from collections import Counter
from pathlib import Path

from pipeline import events, keys
from pipeline.coordinator import Coordinator
from pipeline.ledger_types import Reservation
from pipeline.trajectory import Trajectory
from tests.bench.ledger import new_run, update
from tests.bench.result import Result
from tests.bench.server import Server
from tests.fixtures_ledger import ENGINE, WORKER, trajectory

BATCH, TOKENS = 128, 1000
BATCHES = 50
RELEASED = 2  # per batch
TOLERANCE = 0.01  # of the payload that went through
EVENTS_KEPT = 10_000  # events.archive's own cap


def measure(server: Server) -> list[Result]:
    c, version = new_run(server.client, 2000, batch_size=BATCH), 0
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        archive = Path(folder) / "events.jsonl"
        while server.client.xlen(keys.events(c.run)) < EVENTS_KEPT:
            _batch(server, c, version, archive)
            version += 1
        before, by_key = server.memory(), _by_key(server, c.run)
        peak = max(_batch(server, c, version + i, archive) for i in range(BATCHES))
        after, by_key_after = server.memory(), _by_key(server, c.run)
    grown = {kind: size - by_key.get(kind, 0) for kind, size in by_key_after.items()}
    rest = ", ".join(f"{kind} {size / 1e3:+.0f} kB" for kind, size in sorted(grown.items()) if abs(size) >= 500)
    through = BATCHES * BATCH * len(_trajectory(c.reserve(WORKER, ENGINE)).encode())
    return [
        Result(
            f"Redis memory after {BATCHES} batches of {BATCH} ({through / 1e6:.0f} MB of payload), before them",
            f"{after / 1e6:.2f} MB, {before / 1e6:.2f} MB (at most {peak / 1e6:.2f}); the keys: {rest}",
            f"within {TOLERANCE:.0%} of the payload",
            abs(after - before) <= TOLERANCE * through,
            (before, after, peak),
        )
    ]


def _batch(server: Server, c: Coordinator, version: int, archive: Path) -> int:
    """One update, and the archive's turn. Returns the memory when the batch was whole."""
    for _ in range(RELEASED):
        c.release(c.reserve(WORKER, ENGINE).entry, "cancelled")
    for _ in range(BATCH):
        r = c.reserve(WORKER, ENGINE)
        c.occupy(r.entry, [_trajectory(r)])
    whole = server.memory()
    update(c, version)
    events.archive(server.client, c.run, archive)
    return whole


def _trajectory(r: Reservation) -> Trajectory:
    """TOKENS long, all but the first generated."""
    return trajectory(
        r,
        tokens=[1] * TOKENS,
        loss_mask=[0] + [1] * (TOKENS - 1),
        rollout_logprobs=[0.0] + [-0.5] * (TOKENS - 1),
        segments=[(1, TOKENS - 1, ENGINE, r.version)],
    )


def _by_key(server: Server, run: str) -> dict[str, int]:
    """Bytes of the run's keys by what they are: entry, events, trajectories, prompt, …"""
    sizes: Counter[str] = Counter()
    for key in server.client.scan_iter(f"{keys.run(run)}*", count=1000):
        kind = [*key.decode().removeprefix(keys.run(run)).split(":"), "run"][1]
        sizes[kind] += server.client.memory_usage(key, samples=0)
    return sizes
