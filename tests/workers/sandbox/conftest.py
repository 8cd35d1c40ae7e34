"""One real sandbox for a file's tests, driven from its own event loop: starting one costs as much as thirty calls."""

import asyncio

import pytest

from workers.sandbox import Limits, PythonSandbox


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


def sandbox_of(loop, seconds, preload=()):
    sandbox = PythonSandbox(Limits(seconds, memory_mb=128, output_bytes=4096), concurrency=2, preload=preload)
    loop.run(sandbox.start())
    yield lambda *calls: loop.run(in_one_session(sandbox, *calls))
    loop.run(sandbox.close())


async def in_one_session(sandbox, *calls):
    """The result of the last call of a fresh session."""
    async with sandbox.session() as python:
        for code in calls:
            result = await python.run(code)
        return result


@pytest.fixture(scope="module")
def run(loop):
    """The calls of a fresh session -> its last ToolResult, with time enough for an innocent call on a busy machine."""
    yield from sandbox_of(loop, seconds=20.0)


@pytest.fixture(scope="module")
def run_briefly(loop):
    """The same, each call after at most a third of a second."""
    yield from sandbox_of(loop, seconds=0.3)
