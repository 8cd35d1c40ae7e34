"""Whole lifecycles per second: every client reserves and occupies as fast as it can, and whoever fills a batch trains.

    client 1   reserve ─ occupy ─ reserve ─ occupy ─ …           a client is a thread with its own connection and
    client 2   reserve ─ FULL: sleep ─ reserve ─ occupy ─ …      worker incarnation; all are in one Python process,
    …                      └─ consume, publish, checkpoint       which is the limit: see the server's share

Wall time: it holds for the machine and the load of this moment, and for this client.
"""

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import redis

from pipeline.coordinator import Coordinator, Placed
from pipeline.ledger_types import Reservation
from tests.bench.ledger import new_run, update
from tests.bench.result import ROUNDS, Result
from tests.bench.server import Server
from tests.fixtures_ledger import ENGINE, trajectory

CLIENTS = (1, 8, 64)
BATCH = 64
SECONDS = 1.0  # of one round
WAIT_S = 0.001  # after FULL


def measure(server: Server) -> list[Result]:
    runs = [_Clients(server, count) for count in CLIENTS]
    rounds = [[run.round() for run in runs] for _ in range(ROUNDS)]
    results = []
    for run, found in zip(runs, zip(*rounds, strict=True), strict=True):
        rates, busy = [rate for rate, _ in found], statistics.median(share for _, share in found)
        value = f"{statistics.median(rates):,.0f} ({min(rates):,.0f} - {max(rates):,.0f})"
        results.append(
            Result(
                f"Lifecycles/s, {run.count} client{'s' if run.count > 1 else ''} (threads of one process)",
                f"{value}; server {busy:.0%} of one core",
                rounds=tuple(rates),
            )
        )
        run.close()
    return results


class _Clients:
    def __init__(self, server: Server, count: int):
        self.server, self.count = server, count
        self.trainer = new_run(server.client, 5000, batch_size=BATCH, max_staleness=1)
        self.training, self.placed, self.version = threading.Lock(), 0, 0
        self.connections = [redis.Redis.from_url(server.url) for _ in range(count)]
        self.clients = [Coordinator(connection, self.trainer.run) for connection in self.connections]

    def round(self) -> tuple[float, float]:
        """(lifecycles/s, the server's CPU seconds per second)."""
        until = time.perf_counter() + SECONDS
        began, cpu, placed = time.perf_counter(), self.server.cpu_us(), self.placed
        with ThreadPoolExecutor(self.count) as threads:
            for working in [threads.submit(self._work, f"w{i}-a", c, until) for i, c in enumerate(self.clients)]:
                working.result()
        took = time.perf_counter() - began
        return (self.placed - placed) / took, 1e-6 * (self.server.cpu_us() - cpu) / took

    def _work(self, worker: str, client: Coordinator, until: float) -> None:
        while time.perf_counter() < until:
            r = client.reserve(worker, ENGINE)
            if not isinstance(r, Reservation):
                time.sleep(WAIT_S)
                continue
            answer = client.occupy(r.entry, [trajectory(r)])
            if not isinstance(answer, Placed):
                raise RuntimeError(f"expected Placed, found {answer}: it measures something else")
            with self.training:
                self.placed += 1
                if self.placed >= (self.version + 1) * BATCH and update(self.trainer, self.version):
                    self.version += 1

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
