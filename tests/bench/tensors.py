"""From workers' hands to packed tensors, against the least that could carry the same bytes through Redis.

    ledger   occupy × 64 ─ consume ─ fetch, decoded ─ plan and pack: int64 tensors, ready for the model
    bare     one pipeline of SET × 64 ─ MGET          the same encoded messages, nothing made of them

Both run in one thread of one process, in alternation. What workers do beforehand (reserve, and making a trajectory) is
not measured; encoding it is.
"""

import statistics
import time

import numpy as np
import redis

from pipeline.coordinator import Coordinator
from pipeline.ledger_types import Reservation
from pipeline.trajectory import Trajectory
from tests.bench.ledger import new_run, publish
from tests.bench.result import ROUNDS, Result, ratio
from tests.bench.server import Server
from tests.fixtures_ledger import ENGINE, TRAINER, WORKER
from trainer import packing

TOKENS = 8192
BATCH = 64
BATCHES = 4  # of one round, of each kind
TOKEN_BUDGET = 4 * TOKENS  # of a micro-batch
TARGET = 0.5


def measure(server: Server) -> list[Result]:
    c, version = new_run(server.client, 2 * BATCH, batch_size=BATCH), 0
    wall, cpu, per_second = [], [], []
    for round_number in range(ROUNDS + 1):
        ledger, bare = _Clock(server), _Clock(server)
        for _ in range(BATCHES):
            trajectories = [_trajectory(c.reserve(WORKER, ENGINE)) for _ in range(BATCH)]
            messages = {f"bench-bare-{i}": t.encode() for i, t in enumerate(trajectories)}
            with ledger:
                _through_the_ledger(c, version, trajectories)
            with bare:
                _bare(server.client, messages)
            server.client.delete(*messages)
            version += 1
            publish(c, version)
        if round_number:  # the first one warms up: connections, caches, imports
            wall.append(bare.seconds / ledger.seconds)
            cpu.append(bare.cpu_s / ledger.cpu_s)
            per_second.append(BATCHES * BATCH / ledger.seconds)
    name = "occupy → consume → packed tensors, 8k tokens each"
    return [
        ratio(f"{name}: throughput / bare pipelined SET, MGET", wall, above=TARGET),
        ratio("the same in CPU time, of client and server together", cpu),
        Result(f"{name}: trajectories/s", f"{statistics.median(per_second):,.0f}", rounds=tuple(per_second)),
    ]


def _through_the_ledger(c: Coordinator, version: int, trajectories: list[Trajectory]) -> None:
    for t in trajectories:
        c.occupy(t.entry, [t])
    got = c.fetch(c.consume(TRAINER, version).refs)
    for rows in packing.plan([len(t.tokens) for t in got], TOKEN_BUDGET)[0]:
        packing.pack(rows, got)


def _bare(client: redis.Redis, messages: dict[str, bytes]) -> None:
    with client.pipeline(transaction=False) as pipe:
        for key, message in messages.items():
            pipe.set(key, message)
        pipe.execute()
    client.mget(list(messages))


def _trajectory(r: Reservation) -> Trajectory:
    """TOKENS long, the second half of it generated."""
    mask = (np.arange(TOKENS) >= TOKENS // 2).astype(np.uint8)
    return Trajectory(
        prompt_id=r.prompt,
        entry=r.entry,
        version=r.version,
        event=r.event,
        value=r.value,
        outcome=1.0,
        tokens=np.arange(TOKENS, dtype=np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, np.float32(-0.5), np.float32(0)),
        segments=[(TOKENS // 2, TOKENS // 2, ENGINE, r.version)],
    )


class _Clock:
    """Adds up the wall time of what it is entered for, and the CPU time of this process and the server."""

    def __init__(self, server: Server):
        self.server, self.seconds, self.cpu_s = server, 0.0, 0.0

    def __enter__(self) -> None:
        self.cpu_s -= time.process_time() + 1e-6 * self.server.cpu_us()
        self.seconds -= time.perf_counter()

    def __exit__(self, *_) -> None:
        self.seconds += time.perf_counter()
        self.cpu_s += time.process_time() + 1e-6 * self.server.cpu_us()
