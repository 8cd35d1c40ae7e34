"""`headrace` as a person in a shell has it: processes of their own, in a folder of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


class Shell:
    """Runs headrace in `folder`, which is also the working directory of whatever comes of it."""

    def __init__(self, folder: Path):
        self.folder = folder

    def start(self, *arguments: str, stderr: int = subprocess.STDOUT) -> subprocess.Popen:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["HEADRACE_SGLANG_PYTHON"] = str(Path(python_with_sglang()).absolute())
        environment.pop("REDIS_URL", None)
        argv = [sys.executable, "-m", "pipeline.cli", *arguments]
        return subprocess.Popen(
            argv, cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=stderr
        )

    def headrace(self, *arguments: str) -> tuple[int, str]:
        return end(self.start(*arguments))

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """(exit code, standard output, standard error)"""
        process = self.start(*arguments, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=280)
        return process.returncode, out, err

    def left_over(self) -> list[str]:
        """Command lines of living processes that work in the folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cwd").readlink().is_relative_to(self.folder):
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:  # it has ended meanwhile
                continue
        return found


def python_with_sglang() -> str:
    return os.environ.get("HEADRACE_SGLANG_PYTHON", ".venv-sglang/bin/python")


def end(process: subprocess.Popen, timeout_s: float = 280) -> tuple[int, str]:
    try:
        out, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, _ = process.communicate(timeout=60)
        pytest.fail(f"took longer than {timeout_s} s:\n{out}")
    return process.returncode, out
