import asyncio
import contextlib

import pytest

from pipeline.data import training_problems
from workers.engine import connections
from workers.environments import open_environment
from workers.worker import Worker

DIGEST16 = "0123456789abcdef"


@contextlib.asynccontextmanager
async def working(settings, coordinator, chat):
    """A worker of this loop; drained at the end."""
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


@pytest.mark.sglang
def test_a_worker_fills_buffers_up_to_the_bound_and_drains(settings, ledger, chat, sglang, serve_label, run):
    serve_label(f"{run}:0:{DIGEST16}")
    config = settings()
    c = ledger(config, training_problems(config), sglang.url)

    async def main():
        async with working(config, c, chat) as worker:
            await until(lambda: c.status()["placed"] == 24 and not c.status()["reserved"])
            await until(lambda: worker.waiting.startswith("a place in the buffers"))
        assert worker.counts["episodes"] == 24

    asyncio.run(main())
    batch = c.consume("trainer", 0)
    trajectories = c.fetch(batch.refs)
    assert len(trajectories) == 8
    for t in trajectories:
        assert t.action_tokens == sum(length for _, length, _, _ in t.segments) > 0
        assert {(engine, version) for _, _, engine, version in t.segments} == {("e0", 0)}
        assert (t.rollout_logprobs[t.loss_mask == 1] < 0).all()
        assert t.metrics["turns"] == len(t.segments) and t.reward == t.outcome
    assert c.status()["reserved"] == 0
