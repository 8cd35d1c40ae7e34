"""`torchrun --nproc-per-node N -m trainer RUN.toml`, or for one rank `python -m trainer RUN.toml`.

SIGTERM and SIGINT: finish the update, write a checkpoint, exit 0. The same command goes on from there.
Exit codes: 0 done or stopped, 1 failed, 2 wrong usage or settings.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from pipeline.config import load
from pipeline.errors import ConfigError, HeadraceError


def main() -> int:
    parser = argparse.ArgumentParser(prog="trainer", description="Train a run until its last update.")
    parser.add_argument("run", type=Path, help="the run's TOML file")
    parser.add_argument("--redis", help="address of the run's Redis; default: REDIS_URL")
    arguments = parser.parse_args()
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: asked.append(number))
    try:
        _train(arguments, lambda: bool(asked))
    except HeadraceError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"trainer: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _train(arguments: argparse.Namespace, stop) -> None:
    config = load(arguments.run)
    url = arguments.redis or os.environ.get("REDIS_URL") or config.redis.url
    if not url:
        raise ConfigError("which Redis? give --redis URL, or set REDIS_URL or redis.url")
    import redis

    from pipeline.redis_server import RedisFailed, connect

    client = connect(url)
    # torch takes seconds to import: whatever can be wrong before is found before
    from trainer.loop import Trainer
    from trainer.ranks import joined

    try:
        with joined(config.trainer) as ranks:
            Trainer(config, client, ranks, stop).run()
    except redis.RedisError as error:
        raise RedisFailed(
            f"Redis at {url} is gone ({error}): start it again, then this run; it goes on from its newest checkpoint"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
