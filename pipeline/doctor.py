"""`headrace doctor`: does this machine have what a run needs? One line a finding, with what to do about it.

The sandbox is asked itself, in a process of its own: nothing in `pipeline` imports `workers`.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline import programs
from pipeline.config import Config
from pipeline.engine_processes import sglang_python
from pipeline.errors import HeadraceError
from pipeline.redis_server import connect, find_binary, find_url

DISK_GB = 5
MEMORY_GB = 4
SANDBOX = """
import asyncio, sys
from workers.sandbox import Limits, PythonSandbox
async def main():
    limits = Limits(seconds=20, memory_mb=256, output_bytes=4096)
    async with PythonSandbox(limits, preload=sys.argv[1:]) as sandbox:
        async with sandbox.session() as python:
            result = await python.run("print(6 * 7)")
        assert result.output.strip() == "42", result
        print(sandbox.confinement)
asyncio.run(main())
"""


def examine(config: Config | None = None) -> list[dict[str, Any]]:
    """check, ok, found, fix of every finding. config: of the run that is to be here; else any."""
    python, url, preload = None, None, []
    if config is not None:
        python, url, preload = config.engines.python, config.redis.url, config.environment.tool_preload
    checks = {
        "python": _python,
        "sglang": lambda: _sglang(python),
        "redis": lambda: _redis(url),
        "sandbox": lambda: _sandbox(preload),
        "loopback": _loopback,
        "disk": _disk,
        "memory": _memory,
    }
    return [_finding(name, check) for name, check in checks.items()]


def _finding(name: str, check: Callable[[], tuple[bool, str, str]]) -> dict[str, Any]:
    try:
        ok, found, fix = check()
    except HeadraceError as error:
        ok, (found, _, fix) = False, str(error).partition("; ")
    return {"check": name, "ok": ok, "found": found, "fix": fix}


def _python() -> tuple[bool, str, str]:
    version = ".".join(map(str, sys.version_info[:3]))
    return sys.version_info >= (3, 11), f"Python {version} ({sys.executable})", "install Python 3.11 or newer"


def _sglang(given: Path | None) -> tuple[bool, str, str]:
    python = sglang_python(given)
    question = "from importlib.metadata import version; print(version('sglang'))"
    answer = subprocess.run([python, "-P", "-c", question], capture_output=True, text=True, timeout=30)
    return answer.returncode == 0, f"SGLang {answer.stdout.strip()} ({python})", "`make setup` installs it"


def _redis(given: str | None) -> tuple[bool, str, str]:
    if url := find_url(None, given):
        with connect(url):
            return True, f"the server at {url} answers", ""
    return True, str(find_binary()), ""


def _sandbox(preload: list[str]) -> tuple[bool, str, str]:
    answer = subprocess.run(
        [*programs.PYTHON, "-c", SANDBOX, *preload],
        capture_output=True,
        text=True,
        timeout=60,
        env=programs.inherited(programs.environment()),
    )
    said = answer.stderr.strip().splitlines()[-1:] or [""]
    having = f", with {', '.join(preload)}" if preload else ""
    found = f"Python ran confined by {answer.stdout.strip()}{having}" if answer.returncode == 0 else said[0]
    return (
        answer.returncode == 0,
        found,
        "Linux ≥ 5.13 with Landlock and seccomp, libseccomp2 and `pip install 'headrace[rollout]'`, or bubblewrap; "
        "environment.allow_unconfined = true runs tools without a sandbox",
    )


def _loopback() -> tuple[bool, str, str]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
            return True, "127.0.0.1 takes connections", ""
    except OSError as error:
        return False, f"127.0.0.1: {error}", "bring the loopback interface up: `ip link set lo up`"


def _disk() -> tuple[bool, str, str]:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    return (
        free >= DISK_GB,
        f"{free:.0f} GB free here",
        f"a run wants {DISK_GB} GB or more; free some, or set run.folder",
    )


def _memory() -> tuple[bool, str, str]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return total >= MEMORY_GB, f"{total:.0f} GB of memory", f"the demo wants {MEMORY_GB} GB or more"
