"""How every process reaches the Redis of its run, and waits for one that is away.

--redis ─▶ REDIS_URL ─▶ redis.url      find_url: a server that runs already; else redis_server.py starts one
connect ─▶ a client, once it answers   its password from where secrets.py has it
patient(call) ─▶ call, call again …    while Redis is away, full, or knows no scripts yet; for a minute at most
"""

import logging
import os
import ssl
import time
from collections.abc import Callable
from typing import TypeVar

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from pipeline.errors import HeadraceError
from pipeline.secrets import REDIS_PASSWORD, masked, password_in_query, secret

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

log = logging.getLogger(__name__)


class RedisFailed(HeadraceError, RuntimeError):
    """No Redis could be reached or started; the message says what to do."""

    code = "REDIS"


def find_url(flag: str | None = None, configured: str | None = None) -> str | None:
    """The address of a server that runs already: --redis, else REDIS_URL, else redis.url of the run's file; None: there
    is none, start one."""
    return flag or os.environ.get("REDIS_URL") or configured or None


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
