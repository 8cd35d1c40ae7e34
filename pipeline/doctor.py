"""`headrace doctor`: does this machine have what a run needs? One line a finding, with what to do about it.

    here                Python, SGLang, the sandbox
    doctor_redis.py     a server that runs already: will it keep the ledger, and from whom
    doctor_disk.py      room for the run's checkpoints and weights
    doctor_machine.py   memory, GPUs, ports, Docker Compose

The sandbox is asked itself, in a process of its own: nothing in `pipeline` imports `workers`.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import doctor_disk, doctor_machine, doctor_redis, programs
from pipeline.config import Config
from pipeline.doctor_machine import Finding
from pipeline.engine_processes import sglang_python
from pipeline.errors import HeadraceError
from pipeline.redis_client import RedisFailed, find_url
from pipeline.redis_server import find_binary

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
    return [_finding(name, check) for name, check in _checks(config)]


def _checks(config: Config | None) -> Iterator[tuple[str, Callable[[], Finding]]]:
    python, url, preload = None, None, []
    if config is not None:
        python, url, preload = config.engines.python, config.redis.url, config.environment.tool_preload
    yield "python", _python
    yield "sglang", lambda: _sglang(python)
    if server := find_url(None, url):
        try:
            yield from doctor_redis.checks(server, config)
        except RedisFailed as error:
            yield "redis", partial(_fails, error)
    else:
        yield "redis", lambda: (True, str(find_binary()), "")
    yield "sandbox", lambda: _sandbox(preload)
    yield "loopback", doctor_machine.loopback
    yield "disk", lambda: doctor_disk.disk(config)
    yield "memory", doctor_machine.memory
    yield "shared memory", lambda: doctor_machine.shared_memory(config)
    yield "gpus", lambda: doctor_machine.gpus(config)
    if config is not None and config.trainer.gpus:
        yield "torch", lambda: doctor_machine.torch_gpus(config)
    if config is not None:
        yield "ports", lambda: doctor_machine.settings_ports(config)
    yield "compose", doctor_machine.compose


def _fails(error: HeadraceError) -> Finding:
    raise error


def _finding(name: str, check: Callable[[], Finding]) -> dict[str, Any]:
    try:
        ok, found, fix = check()
    except HeadraceError as error:
        ok, (found, _, fix) = False, str(error).partition("; ")
    except subprocess.TimeoutExpired as error:
        asked = shlex.join(map(str, error.cmd[:3]))  # a program of ours is no word for a line
        ok, found, fix = False, f"`{asked}` has not ended within {error.timeout:g} s", "see why it hangs, and end it"
    except OSError as error:
        ok, found, fix = False, str(error), "put that right, and ask again"
    return {"check": name, "ok": ok, "found": found, "fix": fix}


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return sys.version_info >= (3, 11), f"Python {version} ({sys.executable})", "install Python 3.11 or newer"


def _sglang(given: Path | None) -> Finding:
    python = sglang_python(given)
    question = "from importlib.metadata import version; print(version('sglang'))"
    answer = subprocess.run([python, "-P", "-c", question], capture_output=True, text=True, timeout=30)
    return answer.returncode == 0, f"SGLang {answer.stdout.strip()} ({python})", "`make setup` installs it"


def _sandbox(preload: list[str]) -> Finding:
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
