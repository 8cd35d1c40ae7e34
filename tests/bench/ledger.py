"""A fresh run for a measurement, and what its trainer does once per update."""

import uuid

import redis

from pipeline.coordinator import Coordinator
from pipeline.ledger_types import Batch
from tests.fixtures_ledger import ENGINE, TRAINER


def new_run(client: redis.Redis, prompts: int, **settings) -> Coordinator:
    """With its prompts, one engine at version 0, and its trainer joined; all scripts loaded."""
    c = Coordinator.create(client, f"bench-{uuid.uuid4().hex[:8]}", settings)
    for source in c._ledger.scripts.sources.values():
        client.script_load(source)
    c.add_prompts({"id": f"p{i}", "payload": b"question"} for i in range(prompts))
    c.register_engine(ENGINE, 0)
    c.join(TRAINER, 0)
    return c


def update(c: Coordinator, version: int) -> Batch | None:
    """Consume batch `version`, publish what follows, bring the engine there, checkpoint. None: it was not READY."""
    batch = c.consume(TRAINER, version)
    if batch:
        publish(c, version + 1)
    return batch


def publish(c: Coordinator, version: int) -> None:
    c.publish(TRAINER, version, f"weights/{version}", "d" * 16)
    c.register_engine(ENGINE, version)
    c.checkpoint(TRAINER, version)
