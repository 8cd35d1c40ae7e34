"""`headrace up`: everything a run needs on one machine, in order, until it is done or stopped.

    check ─▶ folder ─▶ Redis ─▶ version 0 ────────────────────▶ values ─▶ coordinator, workers, trainer
                                  └ its model ─▶ engines start ─┘           with a live display
    at the end, or on Ctrl-C:   workers, trainer, coordinator ─▶ engines, once no worker needs them ─▶ Redis

What is there already is not made again: the same command resumes. A process that dies is started again, a few times;
the ledger and the checkpoints keep what it had done. What cannot be repaired is one message with the end of a log.
"""

import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import redis

from pipeline import evals, first_values, metrics, preparation, summary, version_0
from pipeline.config import Config
from pipeline.config_file import load
from pipeline.config_rules import unwise
from pipeline.coordinator import Coordinator
from pipeline.crew import Crew, role
from pipeline.display import Display
from pipeline.engine_processes import EngineProcess, engine_processes, wait_until_up
from pipeline.errors import ConfigError, HeadraceError, UnknownRun
from pipeline.ledger_view import LedgerView
from pipeline.redis_client import connect, find_url, patient
from pipeline.redis_server import RedisServer, find_binary
from pipeline.run_folder import Lock, locked, open_folder
from pipeline.secrets import without_password
from pipeline.snapshot import Snapshots
from pipeline.supervisor import Supervisor

LOOP_S = 0.1
Answer = TypeVar("Answer")
LAST_GRACE_S = 2  # when the last update is made, nothing that is still in flight will be trained


def up(path: Path, overrides: list[str], redis_url: str | None = None) -> int:
    """Run `path` to its end; returns the exit code. Raises HeadraceError for what cannot be repaired."""
    config = load(path, overrides)
    engines = check(config, redis_url)
    for warning in unwise(config):
        print(f"warning: {warning}", flush=True)
    with locked(config.folder) as lock:
        open_folder(config, rewrite=True)
        if summary.is_finished(config):
            print(f"the run {config.run.name!r} is finished: {config.run.total_steps} updates")
            print(summary.text(config))
            return 0
        launch = Launch(config, engines, redis_url, lock)
        again = shlex.join(["headrace", "up", str(path), *overrides])
        with launch.signals():
            try:
                launch.prepare()
                launch.train()
            except KeyboardInterrupt:
                print("\nstopping: episodes end, a checkpoint is written (Ctrl-C once more: at once)", flush=True)
                launch.stop()
                print(f"stopped; nothing is lost. `{again}` goes on", flush=True)
                return 130
            except (HeadraceError, redis.RedisError) as error:
                launch.stop()
                raise HeadraceError(f"{error}\nnothing is lost: once that is put right, `{again}` goes on") from error
            finally:
                launch.stop()
        summary.finish(config, launch.elapsed_s, launch.url, launch.commands)
        print(summary.text(config))
    return 0


def check(config: Config, redis_url: str | None) -> list[EngineProcess]:
    """Find out in a second what would fail after minutes; returns the engines to start. Raises HeadraceError."""
    version_0.check(config)
    metrics.check(config)
    if config.metrics.port:
        raise ConfigError(
            f"metrics.port = {config.metrics.port}: the processes of `headrace up` share this machine, and each serves "
            "metrics of its own; set it to 0, which takes free ports"
        )
    if config.advantage.values is not None and first_values.missing(config):
        first_values.source(config)
    if find_url(redis_url, config.redis.url) is None:
        find_binary()
    return engine_processes(config)


class Launch:
    """The processes of one `up`."""

    def __init__(self, config: Config, engines: list[EngineProcess], redis_url: str | None, lock: Lock):
        self.config = config
        self._engines = engines
        self._lock = lock
        self._supervisor = Supervisor()
        self._server: RedisServer | None = None
        self.url = find_url(redis_url, config.redis.url)
        self._begun = time.monotonic()
        self.commands: list[str] = []  # for redis-cli, to look at the run when it has ended
        self._stopping = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM and SIGHUP end the run in order; a second one ends it at once."""

        def stop(number, frame):
            if self._stopping:
                self._supervisor.hurry = True
            else:
                self._stopping = True
                raise KeyboardInterrupt

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # -- before training

    def prepare(self) -> None:
        """Everything up to version 0 and the prompts' first values."""
        config = self.config
        metrics.forget_targets(config)
        print(f"run {config.run.name}: all that it writes is in {config.folder}", flush=True)
        with step("Redis"):
            self._start_redis()
        known = self._ask(self._in_ledger)  # before what takes minutes: another headrace's run is refused
        version_0.make(config, self._supervisor, step, self._start_engines)
        with step("SGLang"):
            wait_until_up(self._engines, self._supervisor, config.engines.start_timeout_s)
        # the ledger has all first values, or none
        n = config.advantage.offline_rollouts
        if n and not known:
            played = f"first values: {n} rollout{'s' if n > 1 else ''} a prompt"
            with step(f"first values of {config.advantage.values}" if config.advantage.values else played):
                preparation.play(config, self._supervisor, lambda: self._engine_urls)

    def _start_redis(self) -> None:
        if self.url is None:
            self._server = RedisServer.start(self.config.folder / "redis", self.config.redis.port)
            self.url = self._server.url
        self._client = connect(self.url)
        self._lock.write(redis=without_password(self.url))

    def _start_engines(self) -> None:
        for engine in self._engines:
            self._supervisor.start(engine.program)

    def _in_ledger(self) -> bool:
        try:
            return bool(LedgerView(self._client, self.config.run.name).fields())
        except UnknownRun:
            return False

    @property
    def _engine_urls(self) -> list[str]:
        return self.config.engines.urls or [engine.url for engine in self._engines]

    # -- training

    def train(self) -> None:
        """Coordinator, workers and trainer, until the trainer has made its last update and that is evaluated."""
        run = self.config.run
        self._ask(self._reopen)
        with Display(Snapshots(self._client, run.name, run.total_steps, self._begun)) as display:
            crew = Crew(self.config, self._supervisor, self._client, self.url, self._engines, display.say)
            self._ask(crew.start, display.say)
            done, deadline = False, float("inf")
            while not done and time.monotonic() < deadline:
                done = self._ask(lambda: self._look(crew, display), display.say)
                if crew.trained:
                    deadline = min(deadline, time.monotonic() + self._last_evaluation_s)
                time.sleep(LOOP_S)
            self._ask(lambda: display.refresh(now=True), display.say)
        self.commands = self._ask(lambda: summary.commands(self._client, run.name))
        self._stopping = True
        self._supervisor.stop((name for name in self._supervisor.names if role(name) == "worker"), LAST_GRACE_S)

    def _reopen(self) -> None:
        """A run that had stopped itself goes on, because a person has started it again."""
        ledger = Coordinator(self._client, self.config.run.name)
        with contextlib.suppress(UnknownRun):
            if stopped := ledger.fields()["stopped"]:
                print(f"the run had stopped itself ({stopped}); it goes on", flush=True)
            ledger.resume()

    def _ask(self, call: Callable[[], Answer], say: Callable[[str], None] = print) -> Answer:
        """What `call` learns from Redis, however often that has to be waited for; ours is started again if it ended."""

        def attempt() -> Answer:
            if self._server is not None and not self._server.running:
                say(f"Redis has ended, and starts again with all that was written (log: {self._server.log})")
                self._server = self._server.again()
            return call()

        return patient(attempt, say=say)

    def _look(self, crew: Crew, display: Display) -> bool:
        """One pass of the loop; True when the last update is made and evaluated."""
        crew.look()
        display.refresh()
        return crew.trained and self._evaluated()

    @property
    def _last_evaluation_s(self) -> float:
        return self.config.engines.load_timeout_s + self.config.eval.timeout_s

    def _evaluated(self) -> bool:
        if self.config.eval.data is None:
            return True
        last = evals.read(self._client, self.config.run.name, self.config.run.total_steps)
        return last is not None and last.over

    # -- the end

    def stop(self) -> None:
        """Everything at once, but the engines when no worker needs them any more, and Redis last."""
        self._stopping = True
        for name in self._supervisor.names:
            if role(name) != "engine":
                self._supervisor.drain(name)
        self._supervisor.stop(name for name in self._supervisor.names if role(name) == "worker")
        self._supervisor.stop()
        if self._server is not None:
            self._server.stop()
            self._server = None
        metrics.forget_targets(self.config)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """One line: what was done and how long it took."""
    begun = time.monotonic()
    if sys.stdout.isatty():
        print(f"  {title} …", end="\r", flush=True)
    yield
    print(f"  {title:<44} {time.monotonic() - begun:5.1f} s", flush=True)
