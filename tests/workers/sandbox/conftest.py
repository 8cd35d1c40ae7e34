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
    yield lambda code: loop.run(sandbox.run(code))
    loop.run(sandbox.close())


@pytest.fixture(scope="module")
def run(loop):
    """code -> ToolResult, with room enough that a busy machine does not fail an innocent call."""
    yield from sandbox_of(loop, seconds=20.0)


@pytest.fixture(scope="module")
def run_briefly(loop):
    """code -> ToolResult after at most a third of a second."""
    yield from sandbox_of(loop, seconds=0.3)
