"""`headrace experiment`, everything real: killed in its first run, gone on with by the same command, and reported."""

import csv
import json
import time

import pytest

from tests.fixtures_sglang import serve
from tests.shell import Shell, end

SPEC = """
name = "tiny"
run = "guess.toml"
seeds = [5]
baseline = "trajectory"

[methods.trajectory]
advantage.normalization = "trajectory"
[methods.token]
"""
RUN = """
run = { name = "guess", total_steps = 2 }
model.tiny = {}
data = { size = 16, tasks.number_guessing = {} }
environment = { name = "number_guessing", max_turns = 4 }
rollout = { max_tokens = 4, context_length = 256 }
buffers = { max_staleness = 0, batch_size = 8 }
advantage.offline_rollouts = 1
trainer.checkpoint_every = 1
"""


@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_an_experiment_that_was_killed_goes_on_and_reports_runs_that_began_alike(sglang, tmp_path):
    shell, folder = Shell(tmp_path), tmp_path / "runs" / "tiny"
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "guess.toml").write_text(RUN)
    command = ["experiment", "spec.toml", f"engines.urls=['{sglang.url}']"]
    first = folder / "tiny.default.trajectory.5" / "metrics.jsonl"
    process = shell.start(*command)
    deadline = time.monotonic() + 280
    while not (first.exists() and first.read_text()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.kill()
    _, out = end(process, 60)
    assert first.exists(), out

    code, out = shell.headrace(*command)
    serve(sglang.url, sglang.model_path)
    assert code == 0, out
    assert shell.left_over() == []
    assert "made on the spot" not in out and "prompts are scored" not in out, "what there was is not made again"
    assert "2 of 2 runs reached the budget of 2 updates" in out and "Δ AUC" in out
    report = (folder / "report.md").read_text()
    assert "(0 of 1 positive)" in report or "(1 of 1 positive)" in report
    assert "## Left out\n\nNone." in report and SPEC.strip() in report
    for name in ("rewards", "centers"):
        assert f"({name}.png)" in report and (folder / f"{name}.png").stat().st_size > 5_000
    rows = list(csv.DictReader((folder / "points.csv").read_text().splitlines()))
    assert [(row["method"], row["seed"], row["update"]) for row in rows] == [
        (method, "5", update) for method in ("trajectory", "token") for update in ("1", "2")
    ]
    values = [folder / name / "values.json" for name in ("start", "tiny.default.trajectory.5", "tiny.default.token.5")]
    assert len({json.loads(path.read_text())["weights"] for path in values}) == 1
    assert len({tuple(sorted(path.with_suffix(".jsonl").read_text().splitlines())) for path in values}) == 1

    code, again = shell.headrace(*command)
    assert code == 0 and "1 of 2: " not in again, "finished runs are not made again"
    code, refused = shell.headrace(*command, "optimizer.lr=0.5")
    assert (
        code == 2 and "has begun with other settings, of start:" in refused and "optimizer.lr: 1e-06 → 0.5" in refused
    )
