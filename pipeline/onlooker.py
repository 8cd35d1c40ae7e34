"""Looks at a run again and again, wherever its Redis is at the moment; what it saw last stays, with a word of why.

    holder of up.lock, --redis, REDIS_URL, redis.url ─▶ Redis ─▶ Sight(snapshot, up)
                                                     its Redis is away ─▶ Sight(the last snapshot, away, since when)
    nobody holds it, and it has no other Redis ─▶ its own files, served for a moment ─▶ Sight(snapshot, finished | down)
    it was never up ─▶ Sight(None, waits)

A thread reads, so that a screen or a page stays alive while Redis does not answer.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import redis

from pipeline.config import Config
from pipeline.errors import LedgerError, OtherSchema, UnknownRun
from pipeline.redis_client import RedisFailed, connect, find_url
from pipeline.reports import served
from pipeline.run_folder import AlreadyUp, holder_of
from pipeline.run_state import run_state
from pipeline.snapshot import Snapshot, Snapshots

ANSWER_S = 1.0  # a Redis that is away is asked again after so long
STARTS = "`headrace up` prepares the run"


@dataclass(frozen=True)
class Sight:
    """What is seen of a run. state: waits | up | away | stopped | finished | down."""

    snapshot: Snapshot | None  # the newest there is
    state: str
    said: str  # why it is not up, or cannot be seen


class Onlooker:
    """`look` once, or `with watching(period_s):` and then `sight` as often as you like."""

    def __init__(self, config: Config, redis_url: str | None = None):
        self._config, self._flag = config, redis_url
        self._url: str | None = None
        self._client: redis.Redis | None = None
        self._snapshots: Snapshots | None = None
        self._away_since: float | None = None
        self._error: BaseException | None = None
        self._sight = Sight(None, "waits", "looking for its Redis")

    @property
    def sight(self) -> Sight:
        """What was seen last. Raises what `look` raised in the thread."""
        if self._error is not None:
            raise self._error
        return self._sight

    @contextlib.contextmanager
    def watching(self, period_s: float) -> Iterator[None]:
        """A thread looks every `period_s`."""
        stop = threading.Event()

        def work() -> None:
            try:
                while not stop.is_set():
                    self.look()
                    stop.wait(period_s)
            except BaseException as error:
                self._error = error

        thread = threading.Thread(target=work, daemon=True)  # a call of Redis that hangs ends with this process
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(ANSWER_S)

    def look(self) -> Sight:
        """Read the run, or say why that cannot be."""
        holder = holder_of(self._config.folder)
        url = find_url(self._flag, self._config.redis.url) or (holder or {}).get("redis")
        try:
            self._sight = self._at_rest(holder) if url is None else self._read(url)
            self._away_since = None
        except OtherSchema:
            raise
        except UnknownRun:
            self._sight = Sight(None, "waits", STARTS if holder else "no coordinator has made the run in this Redis")
        except (RedisFailed, redis.RedisError, LedgerError) as error:
            self._close()
            self._away_since = self._away_since or time.monotonic()
            seconds = time.monotonic() - self._away_since
            said = f"Redis does not answer as it should for {seconds:.0f} s: {error}; asking again"
            self._sight = Sight(self._sight.snapshot, "away", said)
        return self._sight

    def _read(self, url: str) -> Sight:
        if url != self._url or self._snapshots is None:
            self._close()
            client = connect(url, timeout_s=ANSWER_S)
            client.get_retry().update_retries(0)  # whoever waits says so
            self._url, self._client = url, client
            self._snapshots = Snapshots(client, self._config.run.name, self._config.run.total_steps)
        return self._judge(self._snapshots.read())

    def _at_rest(self, holder: dict | None) -> Sight:
        """It has no Redis now: what was seen last, or what its own files hold."""
        self._close()
        snapshot = self._sight.snapshot
        if holder is not None:
            return Sight(snapshot, "waits", STARTS)
        if snapshot is None and not (self._config.folder / "redis").is_dir():
            return Sight(None, "waits", f"the run was never up here: `headrace up` starts {self._config.run.name}")
        if snapshot is None:
            try:
                with served(self._config) as url:
                    sight = self._read(url)
                    self._close()
                    return sight
            except AlreadyUp:
                return Sight(None, "waits", STARTS)
        return self._judge(snapshot)

    def _judge(self, snapshot: Snapshot) -> Sight:
        state = run_state(self._config, snapshot.status, snapshot.processes, self._flag)
        if state.name != "up":
            snapshot.rest()
        return Sight(snapshot, state.name, "" if state.name == "up" else state.sentence)

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = self._snapshots = self._url = None
