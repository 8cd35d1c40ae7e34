"""The coordinator process: whatever must happen although no worker and no trainer asks for it.

    create the ledger, add the prompts with their first values
    ├─ engines thread   newest version, or the one under evaluation ──▶ EngineFleet.follow ──▶ EvalSchedule
    └─ main thread      every second: reap leases · archive events and evaluations · delete old weights · report

Loading weights may take minutes, and leases must be reaped meanwhile; so engines have a thread of their own. All state
is in Redis: this process may be killed at any moment and started again, and two of them do the same, harmlessly.
"""

import contextlib
import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redis

from advantage import Evidence
from pipeline import checkpoint_folder, events, first_values
from pipeline.config import Config
from pipeline.config_file import load
from pipeline.coordinator import Coordinator
from pipeline.data import training_problems
from pipeline.engine_fleet import EngineFleet
from pipeline.engine_keeper import Publication
from pipeline.errors import ConfigError, LedgerError, RolledBack, UnknownRun
from pipeline.eval_schedule import EvalSchedule
from pipeline.ledger_metrics import LedgerMetrics
from pipeline.ledger_types import Weights
from pipeline.log import set_up
from pipeline.metrics import serving
from pipeline.progress import Progress
from pipeline.redis_client import REDIS_AWAY_S, RedisFailed, connect, find_url, impatient, patient
from pipeline.transfer import TransferFailed, ask
from pipeline.weights import BadWeights, Label, read_manifest, retain

NAME = "coordinator"
PASS_S = 1.0  # of the main thread
BATCH_S = 0.05  # events come by the thousand: the engines' thread looks through them at most this often,
LOOK_S = 2.0  # at its engines at least this often,
REACT_S = 0.05  # and at them this soon after an event that concerns them

log = logging.getLogger(__name__)


def watch(run_toml: Path | str, engine_urls: Sequence[str] = (), redis_url: str | None = None) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. Raises HeadraceError for what it cannot mend."""
    config = load(run_toml)
    set_up(config, NAME)
    urls = list(engine_urls or config.engines.urls)
    if not urls:
        raise ConfigError("no engine: give --engine URL for each SGLang server, or set engines.urls")
    if len(urls) < config.engines.count and not config.engines.urls:
        log.warning(
            "%d of engines.count = %d are known: name the others too, in HEADRACE_ENGINES or with --engine URL each",
            len(urls),
            config.engines.count,
        )
    url = find_url(redis_url, config.redis.url)
    if url is None:
        raise ConfigError("no Redis: give --redis URL, or set REDIS_URL or redis.url")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with connect(url) as client, impatient(url) as scraped:
        watch = Watch(config, client, urls)
        with serving(config, NAME, LedgerMetrics(scraped, config).families):
            watch.run(stop)
    return 0


class Watch:
    """The coordinator process's work, until `stop` is set."""

    def __init__(self, config: Config, client: redis.Redis, engine_urls: Sequence[str]):
        self._config, self._client, self._run = config, client, config.run.name
        self._coordinator = self._create()
        engines, publish = config.engines, config.publish
        # an engine that drains is as long in loading as its last request, besides
        load_s = engines.load_timeout_s + (config.rollout.request_timeout_s if publish.policy == "drain" else 0)

        def send(url: str, path: str, label: str) -> None:
            if Label.parse(label).version >= config.run.total_steps:
                raise TransferFailed("the trainer ends with its last update")
            ask(client, self._run, url, path, label, engines.load_timeout_s)

        publication = Publication(
            config.folder,
            load_timeout_s=load_s,
            tolerance=engines.probe_tolerance,
            policy=publish.policy,
            at_once=publish.at_once,
            transfer=send if publish.transport == "distributed" else None,
        )
        self.fleet = EngineFleet(self._coordinator, list(engine_urls), publication)
        every, last, lease_s = config.eval.every, config.run.total_steps, config.buffers.lease_s
        self.evals = EvalSchedule(client, self._run, every, last, config.eval.timeout_s, lease_s)
        self._progress = Progress(client, self._run, NAME, "coordinator")
        self._wanted: int | None = None  # the version that the engines should serve
        self._error: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        """Raises RedisFailed when Redis is away for longer than a minute, and whatever else cannot be mended."""
        self.fleet.introduce()
        engines = threading.Thread(target=self._watch_engines, args=(stop,), daemon=True)
        engines.start()
        try:
            self._repeat(self._tend, PASS_S, stop)
        finally:
            stop.set()
            engines.join(events.BLOCK_S + 1)  # not for a load that hangs: the engine ends it, or its own time limit
            with contextlib.suppress(redis.RedisError, LedgerError):
                self.fleet.finish(events.BLOCK_S)
        if self._error is not None:
            raise self._error
        with contextlib.suppress(redis.RedisError):  # a line of progress expires by itself
            self._archive()  # what happened since the last pass: the last evaluation, mostly
            self._progress.done()

    # -- the main thread

    def _tend(self) -> None:
        for entry in self._coordinator.reap():
            log.warning("released: its worker is gone, it is late, or the trainer waits for it", extra={"entry": entry})
        self._archive()
        for path in retain(self._config.folder / "weights", self._needed_versions()):
            log.info("deleted %s: nobody can ask for it any more", path)
        self._progress.waiting(self._sentence(), version=self._coordinator.fields()["version"], engines=str(self.fleet))

    def _archive(self) -> None:
        events.archive(self._client, self._run, self._config.folder / "events.jsonl")
        self.evals.archive(self._config.folder / "evals.jsonl")

    def _needed_versions(self) -> set[int]:
        """The run's start, both checkpoints, the present and the previous version (Redis may forget its last second),
        what engines serve and what they are being given."""
        fields = self._coordinator.fields()
        version = int(fields["version"])
        needed = {0, int(fields["oldest"]), int(fields["checkpoint"]), version, version - self._config.publish.every}
        return needed | self.fleet.versions | ({self._wanted} - {None})

    def _sentence(self) -> str:
        held = self.evals.held()
        if held is not None:
            return f"the evaluation of version {held}"
        return "; ".join([*self.fleet.problems, *self.fleet.loading]) or "the next version"

    # -- the engines' thread

    def _watch_engines(self, stop: threading.Event) -> None:
        try:
            self._repeat(lambda: self._look_after_engines(stop), REACT_S, stop)
        except BaseException as error:
            self._error = error
            stop.set()

    def _look_after_engines(self, stop: threading.Event) -> None:
        last = self._coordinator.last_event()  # before looking: what happens meanwhile ends the wait
        weights = self._weights()
        if weights is not None:
            self._wanted = weights.version
            served = self.fleet.follow(weights)
            if served and self._config.eval.data is not None and self.evals.served(weights.version):
                return
        until = time.monotonic() + LOOK_S
        while not stop.is_set() and (left := until - time.monotonic()) > 0:
            found = self._coordinator.wait(last, min(left, events.BLOCK_S))
            if any(event.kind in ("published", "joined", "engine") for event in found):
                return
            last = found[-1].id if found else last
            stop.wait(BATCH_S)

    def _weights(self) -> Weights | None:
        """What the engines should serve: the version under evaluation, else the newest one."""
        held = self.evals.held()
        version = int(self._coordinator.fields()["version"]) if held is None else held
        weights = self._coordinator.weights(version)
        if weights is None and version == 0:
            # the cold start made it; workers need not wait until the trainer is up and publishes it
            try:
                return Weights(0, "weights/0", read_manifest(self._config.folder / "weights" / "0").digest, 0, 0)
            except BadWeights:
                return None
        return weights

    # -- both

    def _repeat(self, step: Callable[[], None], pause_s: float, stop: threading.Event) -> None:
        """`step` again and again. What a lost Redis or ledger raises is waited for, not longer than REDIS_AWAY_S."""

        def attempt() -> None:
            try:
                step()
            except RolledBack as error:
                log.warning("%s", error)  # until the trainer joins with what it has
            except UnknownRun:
                log.warning("this Redis does not know the run (any more); it is made anew, the trainer will join it")
                self._create()

        while not stop.is_set():
            try:
                patient(attempt, REDIS_AWAY_S, log.warning, stop.is_set)
            except RedisFailed:
                if not stop.is_set():
                    raise
            stop.wait(pause_s)

    def _create(self) -> Coordinator:
        """The ledger and its prompts; what exists already stays as it is."""
        seed = f"{self._config.run.seed} {NAME}"
        coordinator = Coordinator.create(self._client, self._run, self._config.ledger_settings, seed=seed)
        added = coordinator.add_prompts(first_prompts(self._config))
        log.info("%d new prompts", added)
        return coordinator


def first_prompts(config: Config) -> Iterator[dict[str, Any]]:
    """The training problems as the ledger takes them: id, payload (JSON), and the evidence that the newest checkpoint
    has of them, as after a loss of Redis; else that of the outcomes in values.jsonl."""
    outcomes, kept = first_values.outcomes(config), checkpoint_folder.read_prompts(config.folder / "checkpoints")
    for problem in training_problems(config):
        evidence = Evidence.from_offline(outcomes.get(problem["id"], ()), mass=config.advantage.mass)
        first = {"alpha": evidence.alpha, "beta": evidence.beta} | kept.get(problem["id"], {})
        yield first | {"id": problem["id"], "payload": json.dumps(problem).encode()}
