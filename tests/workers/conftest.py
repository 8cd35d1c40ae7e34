"""What the tests of this room share: the tiny model's chat, a run's settings, and the label its weights are given."""

import asyncio
import contextlib
import json
import urllib.request

import pytest

from pipeline.config import Config
from pipeline.coordinator import Coordinator
from workers.chat import Chat
from workers.engine import connections
from workers.environments import open_environment
from workers.worker import Worker

DIGEST = "0123456789abcdef" * 4


@contextlib.asynccontextmanager
async def working(settings, coordinator, chat):
    """A worker that runs beside the body, and is drained after it; the worker's own failure is raised."""
    async with open_environment(settings.environment) as make, connections() as http:
        worker = Worker(settings, coordinator, "w0", chat, make, http)
        task = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.drain()
            await task


async def until(condition, seconds=30):
    async with asyncio.timeout(seconds):
        while not (found := await asyncio.to_thread(condition)):
            await asyncio.sleep(0.05)
    return found


@pytest.fixture(scope="session")
def chat(tiny_model):
    return Chat(tiny_model)


@pytest.fixture
def settings(run, tiny_model, tmp_path):
    """Changes are given as sections: settings(rollout={"concurrency": 4})."""

    def make(**sections) -> Config:
        task = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
        base = {
            "run": {"name": run, "folder": str(tmp_path)},
            "model": {"path": str(tiny_model)},
            "data": {"size": 16, "tasks": {"chain_sum": task}},
            "environment": {"max_turns": 3, "setup_timeout_s": 10, "episode_timeout_s": 60},
            "rollout": {"concurrency": 8, "max_tokens": 16, "context_length": 256, "grace_s": 5},
            "buffers": {"max_staleness": 2, "batch_size": 8, "lease_s": 3, "max_trajectory_bytes": 65536},
        }
        return Config.model_validate({name: base.get(name, {}) | sections.get(name, {}) for name in base | sections})

    return make


@pytest.fixture
def serve_label(sglang):
    """Give the server's weights a label; `base` again afterwards."""

    def label(text: str) -> None:
        body = json.dumps({"new_version": text, "abort_all_requests": False}).encode()
        request = urllib.request.Request(
            f"{sglang.url}/update_weight_version", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert json.load(reply)["success"]

    yield label
    label("base")


@pytest.fixture
def ledger(redis_url, run):
    """A function that makes the run of some settings, with prompts and one registered engine at version 0."""
    import redis

    with redis.Redis.from_url(redis_url) as client:

        def make(settings: Config, problems: list[dict], url: str, engine: str = "e0") -> Coordinator:
            c = Coordinator.create(client, run, settings.ledger_settings)
            c.add_prompts([{"id": p["id"], "payload": json.dumps(p).encode()} for p in problems])
            c.join("trainer", 0)
            c.publish("trainer", 0, "weights/0", DIGEST)
            c.register_engine(engine, 0, url)
            return c

        yield make
