"""`headrace cold-start` and `headrace values`: what `up` does before it trains, one step each, without Redis.

    cold-start   version_0.py ─▶ weights/0                        the logs of what is waited for are shown meanwhile
    values       engines, if none run ─▶ workers.evaluate values ─▶ values.jsonl      or advantage.values, taken

Either may be killed and started again, and `up` goes on from what is there.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from pipeline import first_values, programs, version_0
from pipeline.config import Config
from pipeline.engine_processes import engine_processes, wait_until_up
from pipeline.environment_rules import check_environment
from pipeline.errors import ConfigError
from pipeline.log import event_of
from pipeline.run_folder import locked, open_folder
from pipeline.supervisor import Process, Program, Supervisor

VALUES_S = 24 * 3600.0  # engines that hang end them sooner, by rollout.request_timeout_s


def cold_start(config: Config) -> dict[str, Any]:
    """Make version 0; answers what it came of. Raises HeadraceError."""
    version_0.check(config)
    with _alone(config) as supervisor:
        version_0.make(config, supervisor, _step)
    return version_0.summary(config)


def values(config: Config, engine_urls: Sequence[str] = ()) -> dict[str, Any]:
    """The outcomes of every prompt under version 0; answers how they are spread. Raises HeadraceError.

    engine_urls: of servers that run already; none, nor engines.urls: they are started for the time being.
    """
    if not config.advantage.offline_rollouts:
        raise ConfigError("advantage.offline_rollouts = 0: this run has no first values to play")
    if config.run.parent and not first_values.missing(config):
        raise ConfigError(f"nothing to play: what is known of the prompts is that of {config.run.parent}")
    check_environment(config.environment)
    with _alone(config) as supervisor:
        play(config, supervisor, lambda: list(engine_urls) or config.engines.urls or _start_engines(config, supervisor))
    return first_values.summary(config)


def play(config: Config, supervisor: Supervisor, engine_urls: Callable[[], Sequence[str]]) -> None:
    """What is missing in values.jsonl: taken from another run, or played. engine_urls is called if it is played."""
    if not first_values.missing(config):
        return
    if config.advantage.values is not None:
        first_values.take(config)
        return
    first_values.begin(config)  # before engines are started, which takes minutes
    program = programs.values(config, engine_urls())
    process = supervisor.start(program)
    supervisor.wait_until(lambda: not process.running, program, VALUES_S)


def _start_engines(config: Config, supervisor: Supervisor) -> list[str]:
    engines = engine_processes(config)
    for engine in engines:
        supervisor.start(engine.program)
    with _step("SGLang"):
        wait_until_up(engines, supervisor, config.engines.start_timeout_s)
    return [engine.url for engine in engines]


@contextlib.contextmanager
def _alone(config: Config) -> Iterator[Supervisor]:
    """Nobody else starts the run meanwhile, so that its settings may change where they can, as with `up`."""
    with locked(config.folder):
        open_folder(config, rewrite=True)
        supervisor = TellingSupervisor()
        try:
            yield supervisor
        finally:
            supervisor.stop()


@dataclass
class TellingSupervisor(Supervisor):
    """Shows what the program that it waits for writes into its log; not that of a server."""

    _told: dict[Path, int] = field(default_factory=dict)  # log -> bytes of it that were shown

    def start(self, program: Program, failures: int = 0) -> Process:
        self._told[program.log] = program.log.stat().st_size if program.log.exists() else 0
        return super().start(program, failures)

    def wait_until(self, condition: Callable[[], bool], program: Program, timeout_s: float) -> None:
        def told() -> bool:
            done = condition()
            self._tell(program.log)
            return done

        super().wait_until(condition if program.serves else told, program, timeout_s)

    def _tell(self, log: Path) -> None:
        with log.open("rb") as file:
            file.seek(self._told[log])
            text, newline, _ = file.read().rpartition(b"\n")
        if newline:
            self._told[log] += len(text) + 1
            for line in text.decode(errors="replace").splitlines():
                _say(f"    {event_of(line)}")


@contextlib.contextmanager
def _step(title: str) -> Iterator[None]:
    begun = time.monotonic()
    _say(f"  {title} …")
    yield
    _say(f"  {title}: {time.monotonic() - begun:.1f} s")


def _say(text: str) -> None:
    click.echo(text, err=True)  # standard output is the result's
