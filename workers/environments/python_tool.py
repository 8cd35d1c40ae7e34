"""The Python tool of the environments that have it: its schema, its sandbox, and what the model sees of a result.

    environment.step_timeout_s     ├──────────────────────────────────────────────┤ beyond: the episode is a failure
    until()                        ├───────────────────────────────────────────┤    beyond: [timeout], for the model
    run(code, until), one by one      wait for a place │ code │ code │ code …

What a model writes is answered, and fails no episode: not even with as many slow calls as a reply can hold.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from pipeline import config
from workers.sandbox import Limits, PythonSandbox, Session, ToolResult

SHARE = 0.9  # of environment.step_timeout_s: the rest is for what a step does besides

PYTHON = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run Python code; answers with what it prints, and with the value of a last expression.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}


class PythonTool:
    """One episode's session; the calls of a step share its time, and what they wait for their turn counts too."""

    def __init__(self, session: Session, step_s: float):
        self._session, self._step_s = session, step_s

    def until(self) -> float:
        """When the calls of a step that begins now must have ended."""
        return asyncio.get_running_loop().time() + self._step_s

    async def run(self, code: str, until: float) -> ToolResult:
        """Raises SandboxUnavailable."""
        try:
            async with asyncio.timeout_at(until):
                return await self._session.run(code)
        except TimeoutError:  # if it has cost the session its variables, the next result says so
            return ToolResult("", "timeout", self._step_s, state_lost=False)

    async def close(self) -> None:
        await self._session.close()


@asynccontextmanager
async def open_python(settings: config.Environment) -> AsyncIterator[Callable[[], PythonTool]]:
    """The tool that environment.tool_… describe, for each episode one. Raises SandboxUnavailable."""
    limits = Limits(settings.tool_timeout_s, settings.tool_memory_mb, settings.tool_output_bytes)
    async with PythonSandbox(
        limits, settings.tool_concurrency, settings.allow_unconfined, settings.tool_preload
    ) as sandbox:
        yield lambda: PythonTool(sandbox.session(), SHARE * settings.step_timeout_s)


def observation(result: ToolResult) -> str:
    """What the code printed, and in brackets what stopped it and what that took along."""
    notes = [result.error] * (result.error is not None) + ["all variables are lost"] * result.state_lost
    return f"{result.output.strip()}\n[{'; '.join(notes)}]".strip() if notes else result.output.strip()
