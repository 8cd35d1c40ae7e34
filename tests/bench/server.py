"""The bench's own Redis, in a temporary folder, with the configuration of every embedded one (append-only file on).

Wall time on a busy machine says nothing, so what is compared is the CPU time of the server's process.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from pipeline.redis_server import RedisServer


class Server:
    """`client` is the connection that measures; `url` is for further clients."""

    def __init__(self, url: str):
        self.url, self.client = url, redis.Redis.from_url(url)

    def cpu_us(self) -> float:
        """CPU time of the server so far, user and system, all its threads."""
        used = self.client.info("cpu")
        return 1e6 * (used["used_cpu_user"] + used["used_cpu_sys"])

    def conditions(self) -> str:
        """What the numbers depend on."""
        info = self.client.info("server")
        name, version = info.get("server_name", "redis"), info.get("valkey_version", info["redis_version"])
        return f"{name} {version}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"

    def memory(self) -> int:
        """Bytes that Redis has allocated for data and connections, without its allocator's caches."""
        return self.client.info("memory")["used_memory"]


@contextmanager
def started() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        process = RedisServer.start(Path(folder))
        server = Server(process.url)
        try:
            yield server
        finally:
            server.client.close()
            process.stop()
