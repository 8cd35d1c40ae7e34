"""One small run through `headrace up`, everything real: stopped by Ctrl-C, resumed, finished, looked at."""

import json
import random
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
import redis

from pipeline.engines import Engine, EngineFailed
from pipeline.ledger_view import LedgerView
from pipeline.redis_client import connect
from tests.chaos.run import Run
from tests.chaos.trial import Trial
from tests.fixtures_sglang import serve
from tests.shell import Shell, end

SMALL = [
    *("run.total_steps=5", "data.size=32", "eval.data.size=8", "eval.n=1", "eval.every=100"),
    *("buffers.batch_size=16", "rollout.concurrency=16", "advantage.offline_rollouts=1"),
    *("cold_start.problems=64", "cold_start.batch_size=32", "cold_start.target=1e-12", "trainer.checkpoint_every=2"),
]
UP = ["up", "small.toml", *SMALL]


def updates(folder: Path) -> list[int]:
    path = folder / "runs/small/metrics.jsonl"
    return [json.loads(line)["version"] for line in path.read_text().splitlines()] if path.exists() else []


KEY = "a-key-of-tests-0123456789"


def engine_of(folder: Path) -> Engine:
    with connect(json.loads((folder / "up.lock").read_text())["redis"]) as client:
        (engine,) = LedgerView(client, folder.name).engines()
    return Engine(engine.url)


def asks_for_the_key(engine: Engine, monkeypatch) -> None:
    """Whoever brings none, or another, is refused by SGLang and told so."""
    assert engine.label().startswith("small:")
    for other in ("", "guessed"):
        with monkeypatch.context() as without:
            without.setenv("HEADRACE_API_KEY", other)
            with pytest.raises(EngineFailed, match="asks for an API key"):
                Engine(engine.url).label()


def holds(path: Path, text: str) -> bool:
    return text.encode() in path.read_bytes()


@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_a_run_is_stopped_by_ctrl_c_resumed_by_the_same_command_and_finished(sglang, tmp_path, monkeypatch):
    """Its engine is its own until Ctrl-C, and the tests' afterwards: starting one takes longer than all updates. Its
    own asks for an API key, which all of the run's processes bring."""
    shell = Shell(tmp_path)
    monkeypatch.setenv("HEADRACE_API_KEY", KEY)
    assert shell.headrace("init", "small", "--recipe", "demo")[0] == 0

    process = shell.start(*UP)
    deadline = time.monotonic() + 280
    while len(updates(tmp_path)) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    try:
        asks_for_the_key(engine_of(tmp_path / "runs/small"), monkeypatch)
    finally:
        process.send_signal(signal.SIGINT)
    code, out = end(process, 60)
    assert code == 130, out
    assert KEY not in out
    holding = [path for path in (tmp_path / "runs/small").rglob("*") if path.is_file() and holds(path, KEY)]
    assert [(path.name, oct(path.stat().st_mode & 0o777)) for path in holding] == [("engine-0.log", "0o600")], (
        "SGLang itself writes it"
    )
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
    serve(sglang.url, sglang.model_path)


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
        serve(sglang.url, sglang.model_path)
    assert trial.failures == []
