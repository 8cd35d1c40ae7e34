"""`python -m workers RUN.toml --name worker-0 [--redis URL]`: one rollout worker, until SIGTERM."""

import argparse
import asyncio
import gc
import signal

import uvloop

from pipeline import config, config_file
from pipeline.coordinator import Coordinator
from pipeline.errors import ConfigError
from pipeline.log import set_up
from pipeline.metrics import serving
from pipeline.program import run
from pipeline.redis_client import connect, find_url
from workers.chat import Chat
from workers.engine import connections
from workers.environments import open_environment
from workers.metrics import WorkerMetrics
from workers.worker import Worker

GARBAGE = 20_000  # objects until the collector looks for cycles; a reply alone is hundreds, and goes without it


async def work(settings: config.Config, name: str, redis_url: str) -> None:
    """Serve the run until SIGTERM or SIGINT drains this worker. Raises HeadraceError."""
    chat = Chat(settings.model_path)
    seed = f"{settings.run.seed} {name}"  # of the draws that put prompts back into the race
    coordinator = Coordinator(connect(redis_url), settings.run.name, seed)
    async with open_environment(settings.environment) as make_environment, connections() as http:
        worker = Worker(settings, coordinator, name, chat, make_environment, http)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, worker.drain)
        gc.freeze()  # what is loaded by now stays: no collection need look at it again
        gc.set_threshold(GARBAGE)
        with serving(settings, name, WorkerMetrics(worker, name).families):
            await worker.run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers", description="One rollout worker.")
    parser.add_argument("run", metavar="RUN.toml")
    parser.add_argument("--name", default="worker-0")
    parser.add_argument("--redis", metavar="URL", help="else REDIS_URL, else redis.url")
    arguments = parser.parse_args()
    settings = config_file.load(arguments.run)
    set_up(settings, arguments.name)
    redis_url = find_url(arguments.redis, settings.redis.url)
    if not redis_url:
        raise ConfigError("a worker needs the run's Redis: give --redis URL, or set REDIS_URL or redis.url")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # a tenth fewer instructions a request
        runner.run(work(settings, arguments.name, redis_url))


if __name__ == "__main__":
    run(main)
