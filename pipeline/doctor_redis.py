"""What `headrace doctor` finds about a Redis that runs already: will it keep the ledger, and from whom?

INFO ─▶ version, eviction, memory, append-only file, clock      any user may ask it
hr:{run} ─▶ schema, settings                                    of the run's file
a visit without a password ─▶ who else comes in?
"""

import ipaddress
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import redis

from pipeline import keys
from pipeline.config import Config
from pipeline.doctor_machine import Finding
from pipeline.errors import ConfigError, UnknownRun
from pipeline.ledger_view import LedgerView
from pipeline.redis_client import connect
from pipeline.secrets import masked, without_user

OLDEST = (7, 0)
VISIT_S = 5.0
SKEW_S = 2.0  # the ledger's times are Redis's, what processes show of themselves is their own
ACCESS = (
    "give it users (docker/users.acl and docker/users.sh make its ACL file) and switch the default one off, or "
    "`bind 127.0.0.1` and `protected-mode yes`"
)


def checks(url: str, config: Config | None) -> Iterator[tuple[str, Callable[[], Finding]]]:
    """Name and check of each; the first one says whether the others can be made. Raises RedisFailed."""
    with connect(url) as client:
        info = client.info()
        skew = info["server_time_usec"] / 1e6 - time.time()
        yield "redis", lambda: _version(url, info)
        yield "redis eviction", lambda: _eviction(info)
        yield "redis memory", lambda: _memory(info, config.buffers.byte_budget if config else None)
        yield "redis durability", lambda: _durability(info)
        yield "redis access", lambda: _access(url)
        yield "redis clock", lambda: _clock(skew)
        if config is not None:
            yield "redis schema", lambda: _run(client, config)


def _version(url: str, info: dict) -> Finding:
    version = str(info["redis_version"])
    new = tuple(int(part) for part in version.split(".")[:2]) >= OLDEST
    return new, f"the server at {masked(url)} answers; version {version}", "install Redis 7.0 or newer, or Valkey"


def _eviction(info: dict) -> Finding:
    policy = info["maxmemory_policy"]
    return (
        policy == "noeviction",
        f"maxmemory-policy {policy}" + ("" if policy == "noeviction" else ": a full one forgets entries by itself"),
        "`CONFIG SET maxmemory-policy noeviction`, and the same in its redis.conf",
    )


def _memory(info: dict, budget: int | None) -> Finding:
    limit = int(info["maxmemory"])
    found = f"maxmemory {limit / 2**30:.1f} GiB" if limit else "no maxmemory: a run may take all of its machine's"
    if limit and budget:
        found += f", buffers.byte_budget {budget / 2**30:.1f} GiB"
    return (
        not limit or limit > (budget or 0),
        found,
        "lower buffers.byte_budget, or raise its maxmemory: what is admitted must fit",
    )


def _durability(info: dict) -> Finding:
    on, written = bool(info["aof_enabled"]), info.get("aof_last_write_status") == "ok"
    found = "the append-only file is on" if on else "no append-only file: a restart forgets the run"
    if not written:
        found = "the last write of its append-only file failed: its disk is full, or not to be written to"
    return (
        on and written,
        found,
        "`CONFIG SET appendonly yes`, and the same in its redis.conf" if written else "free space on its disk",
    )


def _access(url: str) -> Finding:
    """Whoever is let in without a password may do all; that is for this machine alone."""
    with redis.Redis.from_url(without_user(url), retry=None, socket_timeout=VISIT_S) as client:
        try:
            client.ping()
        except redis.exceptions.NoPermissionError:
            pass  # it is let in, and may do something else
        except redis.RedisError as error:
            if isinstance(error, redis.AuthenticationError) or str(error).startswith("DENIED"):  # protected mode
                return True, "nobody is let in without a password", ""
            return False, f"a visit without a password was not answered ({error})", "ask again; its log may say why"
        if not _on_this_machine(urlsplit(url).hostname):
            return False, "whoever reaches it is let in without a password", ACCESS
        try:
            settings = client.config_get("bind", "protected-mode")
        except redis.RedisError:  # a managed one
            settings = {}
    listens = [address.lstrip("-") for address in settings.get("bind", "127.0.0.1").split()] or ["*"]
    open_to = [address for address in listens if not _on_this_machine(address)]
    if open_to and settings.get("protected-mode") == "no":
        return False, f"it listens on {', '.join(open_to)}, and lets in whoever comes without a password", ACCESS
    return True, "only this machine is let in without a password", ""


def _on_this_machine(host: str | None) -> bool:
    if host in (None, "localhost"):  # a socket's file
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _clock(skew: float) -> Finding:
    return (
        abs(skew) <= SKEW_S,
        f"its clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's",
        "set both by a time server: `timedatectl set-ntp true`",
    )


def _run(client: redis.Redis, config: Config) -> Finding:
    ledger = LedgerView(client, config.run.name)
    try:
        ledger.wait_for_run(config.digest, timeout_s=0)
    except UnknownRun:
        return True, f"no run {config.run.name!r} yet", ""
    except ConfigError as error:  # another schema, or other settings
        found, _, fix = str(error).rpartition(": ")
        return False, found, fix
    return True, f"the run {config.run.name!r} is there, in schema {keys.SCHEMA}", ""
