"""`headrace up`: everything a run needs on one machine, in order, until it is done or stopped.

    check ─▶ folder ─▶ Redis ─▶ model ─┬▶ engines start ─────────────────────┬▶ values ─▶ coordinator, workers, trainer
                                       └▶ traces ─▶ cold start (weights/0) ──┘            with a live display
    at the end, or on Ctrl-C:   workers and trainer ─▶ coordinator ─▶ engines ─▶ Redis

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

import redis

from pipeline import evals, programs, summary
from pipeline.config import Config, load
from pipeline.crew import Crew, role
from pipeline.display import Display, Watch
from pipeline.engine_processes import EngineProcess, answers, engine_processes, load_version
from pipeline.errors import ConfigError, HeadraceError
from pipeline.model_folder import check_model_folder
from pipeline.redis_server import RedisServer, connect, find_binary, find_url
from pipeline.run_folder import Lock, locked, open_folder
from pipeline.supervisor import ProcessFailed, Program, Supervisor, log_end

PREPARATION_TIMEOUT_S = 24 * 3600  # of a cold start, of the values; their own settings bound them more closely
REDIS_AWAY_S = 30
LOOP_S = 0.1
VERSION_0 = Path("weights", "0")


def up(path: Path, overrides: list[str], redis_url: str | None = None) -> int:
    """Run `path` to its end; returns the exit code. Raises HeadraceError for what cannot be repaired."""
    config = load(path, overrides)
    engines = check(config, redis_url)
    with locked(config.folder) as lock:
        open_folder(config)
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
                print(
                    "\nstopping: workers finish what they have (Ctrl-C once more ends everything at once)", flush=True
                )
                launch.stop()
                print(f"stopped; nothing is lost. `{again}` goes on", flush=True)
                return 130
            except (HeadraceError, redis.RedisError) as error:
                launch.stop()
                raise HeadraceError(f"{error}\nnothing is lost: once that is put right, `{again}` goes on") from error
            finally:
                launch.stop()
        summary.finish(config, launch.elapsed_s)
        print(summary.text(config))
    return 0


def check(config: Config, redis_url: str | None) -> list[EngineProcess]:
    """Find out in a second what would fail after minutes; returns the engines to start. Raises HeadraceError."""
    if config.model.path is not None:
        check_model_folder(config.model.path, config.rollout.context_length)
    for name, data in {
        "data.path": config.data.path,
        "eval.data.path": config.eval.data and config.eval.data.path,
    }.items():
        if data is not None and not data.is_file():
            raise ConfigError(f"{name} = {data}: no such file; expected JSON lines, one problem each")
    if find_url(redis_url or config.redis.url) is None:
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
        self._url = find_url(redis_url or config.redis.url)
        self._begun = time.monotonic()
        self._away_since: float | None = None  # when Redis stopped to answer
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
        config, folder, run_toml = self.config, self.config.folder, programs.run_toml(self.config)
        print(f"run {config.run.name}: all that it writes is in {folder}, its logs in {folder / 'logs'}", flush=True)
        with self._step("Redis"):
            self._start_redis()
        if config.model.path is None and not (config.model_path / "config.json").exists():
            with self._step("model made on the spot"):
                self._to_its_end(programs.module(config, "model", "trainer.cold_start", "--model-only", run_toml))
        for engine in self._engines:
            self._supervisor.start(engine.program)
        if config.cold_start is not None and not (folder / "traces.bin").exists():
            with self._step("traces for the cold start"):
                self._to_its_end(programs.module(config, "traces", "workers.traces", run_toml))
        if not any(folder.glob("weights/*/manifest.json")):  # version 0 itself may have been outlived by newer ones
            with self._step("cold start" if config.cold_start else "version 0"):
                self._to_its_end(programs.cold_start(config))
        with self._step("SGLang"):
            deadline = time.monotonic() + config.engines.start_timeout_s
            for engine in self._engines:
                self._wait_for(lambda url=engine.url: answers(url), deadline, engine.program)
        if config.advantage.offline_rollouts and not (folder / "values.done").exists():
            with self._step(f"first values: {config.advantage.offline_rollouts} rollouts a prompt"):
                self._load_version_0()
                self._to_its_end(programs.values(config, self._engine_urls))
                (folder / "values.done").touch()

    def _start_redis(self) -> None:
        if self._url is None:
            self._server = RedisServer.start(self.config.folder / "redis", self.config.redis.port)
            self._url = self._server.url
        self._client = connect(self._url)
        self._lock.write(redis=self._url)

    def _to_its_end(self, program: Program) -> None:
        """Run a process that ends by itself."""
        process = self._supervisor.start(program)
        self._wait_for(lambda: not process.running, time.monotonic() + PREPARATION_TIMEOUT_S, program)

    def _wait_for(self, condition: Callable[[], bool], deadline: float, program: Program) -> None:
        """Wait for what `program` does. Raises ProcessFailed if any process fails meanwhile, or the time is over."""
        while not condition():
            self._fail_if_any_failed()
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{program.name} took too long{log_end(program.log)}")
            time.sleep(LOOP_S)
        self._fail_if_any_failed()

    def _fail_if_any_failed(self) -> None:
        for exit in self._supervisor.check():
            if exit.returncode or exit.name.startswith("engine"):
                raise ProcessFailed(str(exit))

    def _load_version_0(self) -> None:
        for url in self._engine_urls:
            load_version(url, self.config.folder / VERSION_0, self.config)

    @property
    def _engine_urls(self) -> list[str]:
        return self.config.engines.urls or [engine.url for engine in self._engines]

    # -- training

    def train(self) -> None:
        """Coordinator, workers and trainer, until the trainer has made its last update and that is evaluated."""
        run = self.config.run
        watch = Watch(self._client, run.name, run.total_steps, self._begun)
        with Display(watch) as display:
            crew = Crew(self.config, self._supervisor, self._client, self._url, self._engines, display.say)
            crew.start()
            done, deadline = False, float("inf")
            while not done:
                with self._redis_may_be_away(display.say):
                    crew.look()
                    display.refresh()
                    if crew.trained:
                        deadline = min(deadline, time.monotonic() + self._last_evaluation_s)
                        done = self._evaluated() or time.monotonic() > deadline
                time.sleep(LOOP_S)
            display.refresh(now=True)
        self._stopping = True
        crew.stop(grace_s=2)  # nothing that is still in flight will be trained

    @property
    def _last_evaluation_s(self) -> float:
        return self.config.engines.load_timeout_s + self.config.eval.timeout_s

    def _evaluated(self) -> bool:
        if self.config.eval.data is None:
            return True
        last = evals.read(self._client, self.config.run.name, self.config.run.total_steps)
        return last is not None and last.over

    @contextlib.contextmanager
    def _redis_may_be_away(self, say: Callable[[str], None]) -> Iterator[None]:
        """The embedded server is started again at once; another one has REDIS_AWAY_S to come back."""
        try:
            yield
            self._away_since = None
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if self._away_since is None:
                self._away_since = time.monotonic()
                say(f"Redis does not answer at {self._url}: {error}")
            if self._server is not None and not self._server.running:
                say("Redis has ended; it starts again with all that was written")
                self._server = RedisServer.start(self._server.folder, self._server.port)
            elif time.monotonic() - self._away_since > REDIS_AWAY_S:
                raise HeadraceError(f"Redis has not answered at {self._url} for {REDIS_AWAY_S} s: {error}") from None

    # -- the end

    def stop(self) -> None:
        """Everything, in order; Redis last. Called twice, it does nothing."""
        self._stopping = True
        names = self._supervisor.names
        self._supervisor.stop(name for name in names if role(name) in ("worker", "trainer"))
        self._supervisor.stop(["coordinator"])
        self._supervisor.stop()
        if self._server is not None:
            self._server.stop()
            self._server = None

    @contextlib.contextmanager
    def _step(self, title: str) -> Iterator[None]:
        """One line: what was done and how long it took."""
        begun = time.monotonic()
        if sys.stdout.isatty():
            print(f"  {title} …", end="\r", flush=True)
        yield
        print(f"  {title:<44} {time.monotonic() - begun:5.1f} s", flush=True)
