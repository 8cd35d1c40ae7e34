"""One process of a run each: what compose and torchrun start, and what `up` does before it trains."""

import os
import socket
from pathlib import Path

import click

from pipeline.cli_options import RUN_TOML, json_option, overrides_argument, redis_option, show

engines_option = click.option(
    "--engine",
    "engine_urls",
    multiple=True,
    metavar="URL",
    envvar="HEADRACE_ENGINES",
    help="An SGLang server; else those of HEADRACE_ENGINES, separated by spaces; else engines.urls.",
)


@click.command()
@click.argument("run_toml", type=RUN_TOML)
@overrides_argument
@engines_option
@redis_option
def coordinator(run_toml, overrides, engine_urls, redis_url):
    """Keep the ledger and the engines: the process that loads new versions and reaps what is lost."""
    _with_redis(redis_url)
    from pipeline.watch import watch

    return watch(_resolved(run_toml, overrides), engine_urls)


@click.command()
@click.argument("run_toml", type=RUN_TOML)
@overrides_argument
@click.option("--name", help="Of this worker alone; default: worker-HOST.")
@redis_option
def worker(run_toml, overrides, name, redis_url):
    """One rollout worker."""
    name = name or f"worker-{socket.gethostname()}"  # each replica of a container has a host name of its own
    _become(redis_url, "workers", _resolved(run_toml, overrides), "--name", name)


@click.command()
@click.argument("run_toml", type=RUN_TOML)
@overrides_argument
@redis_option
def train(run_toml, overrides, redis_url):
    """The trainer, with torchrun when it has several ranks; on each node, if trainer.nodes says that there are more."""
    from pipeline import programs
    from pipeline.config_file import load

    _with_redis(redis_url)
    config = load(_resolved(run_toml, overrides))
    argv = programs.trainer_argv(config, config.trainer.max_restarts)
    programs.become(argv, programs.trainer_environment(config))


@click.command("cold-start")
@click.argument("run_toml", type=RUN_TOML)
@overrides_argument
@json_option
def cold_start(run_toml, overrides, as_json):
    """Make version 0: the model made on the spot if there is none, fine-tuned on traces if asked for."""
    from pipeline import preparation
    from pipeline.config_file import load

    show(preparation.cold_start(load(run_toml, overrides)), as_json)


@click.command()
@click.argument("run_toml", type=RUN_TOML)
@overrides_argument
@engines_option
@json_option
def values(run_toml, overrides, engine_urls, as_json):
    """Score every prompt a few times with version 0, before training, for its first value.

    Without --engine, HEADRACE_ENGINES and engines.urls, engines are started for it.
    """
    from pipeline import preparation
    from pipeline.config_file import load

    show(preparation.values(load(run_toml, overrides), engine_urls), as_json)


def _resolved(run_toml: Path, overrides: tuple[str, ...]) -> Path:
    """The run.toml of the run's folder, written if this is its first process; other settings are refused."""
    from pipeline.config_file import load
    from pipeline.run_folder import open_folder

    return open_folder(load(run_toml, overrides))


def _with_redis(redis_url: str | None) -> None:
    if redis_url:
        os.environ["REDIS_URL"] = redis_url


def _become(redis_url: str | None, module: str, *arguments: str | Path) -> None:
    from pipeline import programs

    _with_redis(redis_url)
    programs.become([*programs.PYTHON, "-m", module, *map(str, arguments)], programs.environment())


COMMANDS = (coordinator, worker, train, cold_start, values)
