"""The Python tool of the environments that have it: its schema, its sandbox, and what the model sees of a result."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pipeline import config
from workers.sandbox import Limits, PythonSandbox, ToolResult

PYTHON = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run Python code; answers with what it prints, and with the value of a last expression.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}


@asynccontextmanager
async def open_sandbox(settings: config.Environment) -> AsyncIterator[PythonSandbox]:
    """The sandbox that environment.tool_… describe. Raises SandboxUnavailable."""
    limits = Limits(settings.tool_timeout_s, settings.tool_memory_mb, settings.tool_output_bytes)
    async with PythonSandbox(
        limits, settings.tool_concurrency, settings.allow_unconfined, settings.tool_preload
    ) as sandbox:
        yield sandbox


def observation(result: ToolResult) -> str:
    """What the code printed, and in brackets what stopped it and what that took along."""
    notes = [result.error] * (result.error is not None) + ["all variables are lost"] * result.state_lost
    return f"{result.output.strip()}\n[{'; '.join(notes)}]".strip() if notes else result.output.strip()
