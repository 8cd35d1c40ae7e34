"""A run under `headrace up`, as a person in a shell has it; and its processes, as `kill -9` sees them.

up ─┬─ redis · engine · coordinator · worker · trainer        children of the launcher, each a kind to kill
    └─ metrics.jsonl ──▶ `made`: updates on the disk
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

NAME = "chaos"
SMALL = [
    *("data.size=64", "eval.data.size=8", "eval.n=1", "eval.every=20", "advantage.offline_rollouts=1"),
    *("buffers.batch_size=16", "buffers.lease_s=5", "rollout.workers=2", "rollout.concurrency=12"),
    *("cold_start.problems=64", "cold_start.batch_size=32", "cold_start.target=1e-12", "trainer.checkpoint_every=3"),
]
KINDS = {  # kind -> what its command line contains
    "coordinator": "pipeline.cli coordinator",
    "worker": "-m workers",
    "trainer": "-m trainer",
    "engine": "sglang.launch_server",
    "redis": "-server 127.0.0.1:",  # its own title for itself
}
LAUNCHER = "launcher"
COMMAND_S = 900  # `down` waits for a trainer's checkpoint, and the machine is busy
FOR_EVER = 100_000  # updates


class Run:
    """One run in `folder`, which is also the working directory of whatever comes of it."""

    def __init__(self, folder: Path, *overrides: str):
        self.folder, self.overrides = folder, overrides
        self.data = folder / "runs" / NAME
        self.launcher: subprocess.Popen | None = None
        self.headrace("init", NAME, "--recipe", "demo")

    def up(self, total_steps: int = FOR_EVER) -> None:
        with (self.folder / "up.log").open("ab") as log:
            argv = self._argv("up", f"{NAME}.toml", *SMALL, *self.overrides, f"run.total_steps={total_steps}")
            self.launcher = subprocess.Popen(
                argv, cwd=self.folder, env=self._environment(), stdout=log, stderr=subprocess.STDOUT
            )

    def headrace(self, *arguments: str) -> tuple[int, str]:
        """Any other command, to its end: exit code and what it said."""
        done = subprocess.run(
            self._argv(*arguments),
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
        )
        return done.returncode, done.stdout

    @property
    def ended(self) -> bool:
        return self.launcher.poll() is not None

    @property
    def made(self) -> int:
        """Updates on the disk; the last line may be torn."""
        path = self.data / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return json.loads(lines[-1])["version"] + 1 if lines else 0

    def said(self, lines: int = 12) -> str:
        """The end of what `up` printed."""
        return "\n".join((self.folder / "up.log").read_text().splitlines()[-lines:])

    def alive(self, kind: str) -> set[int]:
        """Processes of this kind."""
        if kind == LAUNCHER:
            return set() if self.ended else {self.launcher.pid}
        children = Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children")
        found = set()
        for pid in children.read_text().split() if children.exists() else []:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if KINDS[kind] in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode():
                    found.add(int(pid))
        return found

    def kill(self, kind: str) -> int:
        """kill -9 of one process of this kind; returns its pid."""
        pid = min(self.alive(kind))
        os.kill(pid, signal.SIGKILL)
        if kind == LAUNCHER:
            self.launcher.wait()
        return pid

    def left_over(self) -> list[int]:
        """Living processes that work in the folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if (process / "cwd").readlink().is_relative_to(self.folder):
                    found.append(int(process.name))
        return found

    def wait_until(self, condition, seconds: float) -> bool:
        """False: not within `seconds`, or `up` has ended before."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or self.ended:
                return condition()
            time.sleep(0.1)
        return True

    def _argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pipeline.cli", *arguments]

    def _environment(self) -> dict[str, str]:
        python = os.environ.get("HEADRACE_SGLANG_PYTHON", ".venv-sglang/bin/python")
        kept = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
        return kept | {"OMP_NUM_THREADS": "1", "HEADRACE_SGLANG_PYTHON": str(Path(python).absolute())}
