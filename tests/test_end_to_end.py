"""One small run through `headrace up`, everything real: stopped by Ctrl-C, resumed, finished, looked at."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import redis

from tests.chaos.run import Run
from tests.chaos.trial import Trial

SMALL = [
    *("run.total_steps=5", "data.size=32", "eval.data.size=8", "eval.n=1", "eval.every=100"),
    *("buffers.batch_size=16", "rollout.concurrency=16", "advantage.offline_rollouts=1"),
    *("cold_start.problems=64", "cold_start.batch_size=32", "cold_start.target=1e-12", "trainer.checkpoint_every=2"),
]
UP = ["up", "small.toml", *SMALL]


class Shell:
    """Runs headrace in `folder`, which is also the working directory of whatever comes of it."""

    def __init__(self, folder: Path):
        self.folder = folder

    def start(self, *arguments: str) -> subprocess.Popen:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["HEADRACE_SGLANG_PYTHON"] = str(Path(python_with_sglang()).absolute())
        environment.pop("REDIS_URL", None)
        argv = [sys.executable, "-m", "pipeline.cli", *arguments]
        return subprocess.Popen(
            argv, cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def headrace(self, *arguments: str) -> tuple[int, str]:
        return end(self.start(*arguments))

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


def updates(folder: Path) -> list[int]:
    path = folder / "runs/small/metrics.jsonl"
    return [json.loads(line)["version"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_a_run_is_stopped_by_ctrl_c_resumed_by_the_same_command_and_finished(sglang, tmp_path):
    """Its engine is its own until Ctrl-C, and the tests' afterwards: starting one takes longer than all updates."""
    shell = Shell(tmp_path)
    assert shell.headrace("init", "small", "--recipe", "demo")[0] == 0

    process = shell.start(*UP)
    deadline = time.monotonic() + 280
    while len(updates(tmp_path)) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    code, out = end(process, 60)
    assert code == 130, out
    assert f"stopped; nothing is lost. `headrace {shlex.join(UP)}` goes on" in out
    assert shell.left_over() == []
    made = updates(tmp_path)
    assert 2 <= len(made) < 5, "stopped in the middle"

    elsewhere = [f"engines.urls=['{sglang.url}']", "engines.args=[]"]
    code, out = shell.headrace(*UP, *elsewhere)
    assert code == 0, out
    assert "cold start" not in out, "what was there is not made again"
    assert "first values" not in out
    assert "5 updates" in out
    assert "success on held-out problems" in out
    assert shell.left_over() == []
    assert updates(tmp_path) == [0, 1, 2, 3, 4], "every update once, none lost"
    evaluated = [json.loads(line)["version"] for line in (tmp_path / "runs/small/evals.jsonl").read_text().splitlines()]
    assert evaluated == [0, 5]
    assert (tmp_path / "runs/small/curves.png").stat().st_size > 10_000

    code, again = shell.headrace(*UP, *elsewhere)
    assert code == 0
    assert "is finished: 5 updates" in again
    answers_of_the_lines_at_the_end(out, tmp_path)

    code, out = shell.headrace("eval", "5", "--engine", sglang.url, "--json")
    assert code == 0, out
    result = json.loads(out)
    assert (result["version"], result["trajectories"]) == (5, 8)
    assert 0 <= result["success"] <= 1
    assert shell.left_over() == []
    serve_its_own_model_again(sglang)


def answers_of_the_lines_at_the_end(out: str, folder: Path) -> None:
    """Serve the run's data as the summary says, and send what its redis-cli lines would send."""
    lines = [line.strip() for line in out.splitlines()]
    serve = shlex.split(next(line for line in lines if line.endswith("redis.conf &")).removesuffix("&"))
    server = subprocess.Popen(serve, cwd=folder)
    try:
        commands = [shlex.split(line) for line in lines if line.startswith(("redis-cli", "valkey-cli"))]
        assert len(commands) == 3
        for program, option, port, *command in commands:
            assert (program, option) in [("redis-cli", "-p"), ("valkey-cli", "-p")]
            with redis.Redis(port=int(port)) as client:
                assert client.execute_command(*command), command
    finally:
        server.terminate()
        server.wait(10)


@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_a_run_outlives_kill_9_of_each_of_its_processes_and_its_audit_is_clean(sglang, tmp_path):
    """The short form of `python -m tests.chaos`, on an engine that is not its own."""
    run = Run(tmp_path, f"engines.urls=['{sglang.url}']", "engines.args=[]")
    trial = Trial(run, random.Random(1), ["coordinator", "worker", "trainer", "redis"])
    try:
        trial.fire(4)
        trial.finish()
    finally:
        run.headrace("down")
        serve_its_own_model_again(sglang)
    assert trial.failures == []


def serve_its_own_model_again(server) -> None:
    body = {"model_path": str(server.model_path), "weight_version": "base", "flush_cache": True}
    request = urllib.request.Request(
        f"{server.url}/update_weights_from_disk", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert json.load(reply)["success"]
