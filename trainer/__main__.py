"""`torchrun --nproc-per-node N -m trainer RUN.toml`, or for one rank `python -m trainer RUN.toml`.

SIGTERM and SIGINT: finish the update, write a checkpoint, exit 0. The same command goes on from there.
Exit codes: 0 done or stopped, 1 failed, 2 wrong usage or settings.
"""

import argparse
import contextlib
import os
import signal
from pathlib import Path

from pipeline import program
from pipeline.config import Config
from pipeline.config_file import load
from pipeline.errors import ConfigError
from pipeline.log import set_up
from pipeline.metrics import serving
from pipeline.redis_client import connect, find_url


def main() -> None:
    parser = argparse.ArgumentParser(prog="trainer", description="Train a run until its last update.")
    parser.add_argument("run", type=Path, help="the run's TOML file")
    parser.add_argument("--redis", help="address of the run's Redis; default: REDIS_URL")
    arguments = parser.parse_args()
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: asked.append(number))
    program.run(lambda: _train(arguments, lambda: bool(asked)))


def _train(arguments: argparse.Namespace, stop) -> None:
    config = load(arguments.run)
    set_up(config, "trainer")
    _check_ranks(config)
    url = find_url(arguments.redis, config.redis.url)
    if not url:
        raise ConfigError("which Redis? give --redis URL, or set REDIS_URL or redis.url")
    client = connect(url)
    # torch takes seconds to import: whatever can be wrong before is found before
    from trainer.broadcast import broadcasting
    from trainer.loop import Trainer
    from trainer.ranks import joined

    with joined(config.trainer) as ranks, broadcasting(config, url, ranks):
        trainer = Trainer(config, client, ranks, stop)
        with _metrics(config, trainer) if ranks.first else contextlib.nullcontext():
            trainer.run()


def _metrics(config: Config, trainer) -> contextlib.AbstractContextManager:
    from trainer.metrics import TrainerMetrics

    return serving(config, "trainer", TrainerMetrics(trainer.record, config.trainer).families)


def _check_ranks(config: Config) -> None:
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != (asked := config.trainer.ranks):
        raise ConfigError(
            f"trainer.ranks = {asked}, but {started} were started: use `headrace train RUN.toml`, on each node if "
            f"there are several, or set trainer.ranks = {started}"
        )


if __name__ == "__main__":
    main()
