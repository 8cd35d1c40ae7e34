"""Verdicts on answers, out of process: the answer is a model's, and what reads it may hang, crash or be made to run it.

    await judge(answer, problem)  ──▶  fork server, judge_math or judge_tasks imported  ──fork──▶  confined child
    Verdict(1.0) ◀── "1.0" ─────────────────────────────────────────────────────────────────────── score(…)
    Verdict(0.0, "timeout") ◀── no end within SECONDS, too much memory, an exception, junk on its output

It is the sandbox of the Python tool again: an answer that makes a verifier run code can at most award itself a score.
"""

import importlib.util
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pipeline import config
from pipeline.errors import ConfigError
from workers.sandbox import Limits, PythonSandbox

LIMITS = Limits(seconds=5.0, memory_mb=512, output_bytes=4096)
# subject -> the module that knows it, the library that it needs, the extra that brings that
SUBJECTS = {
    "math": ("workers.environments.judge_math", "math_verify", "math"),
    "tasks": ("workers.environments.judge_tasks", "reasoning_gym", "rollout"),
}


@dataclass(frozen=True)
class Verdict:
    """score: a finite number, 0 if there was no verdict; failure: why there was none, in one word."""

    score: float
    failure: str | None = None

    @property
    def metrics(self) -> dict[str, float]:
        return {f"judge_{self.failure}": 1} if self.failure else {}


class Judge:
    """Called with an answer and its problem. Raises SandboxUnavailable, as the Python tool does."""

    def __init__(self, sandbox: PythonSandbox, module: str):
        self.sandbox, self.module = sandbox, module

    async def start(self) -> None:
        """Before the first verdict, so that what is missing is missed before the first episode."""
        await self.sandbox.start()

    async def __call__(self, answer: str, problem: dict[str, Any]) -> Verdict:
        code = (
            f"import json\nfrom {self.module} import score\n"
            f"print('', score({answer!r}, json.loads({json.dumps(problem)!r})), sep='\\n')"
        )
        async with self.sandbox.session() as child:
            result = await child.run(code)
        if result.error:
            return Verdict(0.0, result.error)
        try:
            score = float(result.output.splitlines()[-1])
        except (ValueError, IndexError):
            return Verdict(0.0, "junk")
        return Verdict(score) if math.isfinite(score) else Verdict(0.0, "junk")


@asynccontextmanager
async def open_judge(subject: str, settings: config.Environment) -> AsyncIterator[Judge]:
    """The judge of "math" (math-verify) or "tasks" (reasoning-gym). It starts at the first verdict, or when told to.

    Raises ConfigError if its library is not installed.
    """
    module, library, extra = SUBJECTS[subject]
    if importlib.util.find_spec(library) is None:
        raise ConfigError(f"{settings.name} judges with {library}: pip install 'headrace[{extra}]'")
    sandbox = PythonSandbox(LIMITS, settings.tool_concurrency, settings.allow_unconfined, preload=[module])
    try:
        yield Judge(sandbox, module)
    finally:
        await sandbox.close()
