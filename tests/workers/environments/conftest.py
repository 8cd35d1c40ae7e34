"""Episodes of the real environments, judge and sandbox included: `play`. What an environment's episodes share is opened
once a module for each of its settings."""

import asyncio
import contextlib

import pytest

from pipeline import config
from workers.environments import open_environment


@pytest.fixture(scope="module")
def play():
    """The turns of one episode. A reply of None is what the environment demonstrates."""
    opened = {}

    async def episode(settings: config.Environment, prompt: dict, replies: tuple[str | None, ...]):
        key = settings.model_dump_json()
        if key not in opened:
            opened[key] = await stack.enter_async_context(open_environment(settings))
        environment = opened[key]()
        try:
            turns = [await environment.reset(prompt, 0)]
            for reply in replies:
                turns.append(await environment.step(environment.demonstrate() if reply is None else reply))
            return turns
        finally:
            await environment.close()

    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        yield lambda settings, prompt, *replies: runner.run(episode(settings, prompt, replies))
        runner.run(stack.aclose())
