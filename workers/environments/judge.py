"""Verdicts on answers, out of process: the answer is a model's, and what reads it may hang, crash or be made to run it.

    await judge(answer, problem)  ──▶  fork server, judge_math or judge_tasks imported  ──fork──▶  confined child
    Verdict(1.0) ◀── "1.0" ─────────────────────────────────────────────────────────────────────── score(…)
    Verdict(0.0, "timeout") ◀── too much CPU time or memory, an exception, no score in [0, 1]: all the answer's doing
    JudgeFailed             ◀── twice no verdict for another reason, such as a machine that is busy or out of memory

It is the sandbox of the Python tool again, and what protects the worker. It does not protect the verdict: code that an
answer had a verifier run would share its process, and could say any score. So no verifier gets to evaluate anything but
arithmetic and lists (evaluated.py).
"""

import importlib.util
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pipeline import config
from pipeline.errors import ConfigError
from workers.sandbox import Limits, PythonSandbox, ToolResult

# CPU time decides what an answer may cost; the clock, on which others act too, only ends what hangs.
LIMITS = Limits(seconds=25.0, memory_mb=512, output_bytes=4096, cpu_seconds=5.0)
ATTEMPTS = 2
# subject -> the module that knows it, the library that it needs, the extra that brings that
SUBJECTS = {
    "math": ("workers.environments.judge_math", "math_verify", "math"),
    "tasks": ("workers.environments.judge_tasks", "reasoning_gym", "rollout"),
}


@dataclass(frozen=True)
class Verdict:
    """score: in [0, 1], 0 if there was no verdict; failure: why there was none, in one word."""

    score: float
    failure: str | None = None

    @property
    def metrics(self) -> dict[str, float]:
        return {f"judge_{self.failure}": 1} if self.failure else {}


class JudgeFailed(Exception):
    """There is no verdict, and the answer is not to blame: the episode is a failure, and no reward."""


class Judge:
    """Called with an answer and its problem. Raises JudgeFailed, and SandboxUnavailable as the Python tool does."""

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
        for _ in range(ATTEMPTS):
            async with self.sandbox.session() as child:
                result = await child.run(code)
            if not innocent(result):
                return verdict(result)
        raise JudgeFailed(
            f"{ATTEMPTS} times no verdict on {answer!r:.80}, the last one {result.error} after {result.seconds:.1f} s; "
            "is this machine out of memory or busy?"
        )


def innocent(result: ToolResult) -> bool:
    """Whether something else than the answer may have ended the child: the clock, or the kernel for want of memory."""
    return result.error == "crashed" or (result.error == "timeout" and result.seconds >= LIMITS.seconds)


def verdict(result: ToolResult) -> Verdict:
    if result.error:
        return Verdict(0.0, result.error)
    try:
        score = float(result.output.splitlines()[-1])
    except (ValueError, IndexError):
        return Verdict(0.0, "junk")
    return Verdict(score) if 0 <= score <= 1 else Verdict(0.0, "junk")


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
