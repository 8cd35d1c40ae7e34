"""What an experiment makes of runs that end, fail or are stopped; `launch.up`, which starts processes, is stood in for.
Real ones are in tests/test_experiment.py."""

import json

import pytest

from pipeline import experiment, launch
from pipeline.config_file import load
from pipeline.errors import HeadraceError
from pipeline.experiment_spec import read

SPEC = """
name = "e"
recipe = "guessing"
seeds = [1, 2, 3]
baseline = "a"
[methods.a]
[methods.b]
trainer.minibatches = 2
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A function: the answers of one `up` after another, overrides -> (exit code, the runs that were asked for)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    found = read(tmp_path / "spec.toml")
    first = found.start.folder / "weights" / "0"
    first.mkdir(parents=True)
    (first / "manifest.json").write_text("{}")

    def make(*answers, overrides=()):
        asked, answers = [], iter(answers)

        def up(path, overrides, redis_url):
            asked.append(path.parent.name.removeprefix("e.default."))
            assert (path.parent / "weights" / "0" / "manifest.json").samefile(first / "manifest.json")
            answer = next(answers, 0)
            if answer == "fails":
                raise HeadraceError("an engine is gone")
            if answer == 0:
                (path.parent / "finished.json").write_text(json.dumps({"updates": 30}))
            return answer

        monkeypatch.setattr(launch, "up", up)
        return experiment._make_runs(read(tmp_path / "spec.toml", overrides), None), asked

    return make


def test_a_run_that_fails_is_told_and_made_again_by_the_same_command_alone(made, capsys):
    code, asked = made(0, "fails", 0)
    assert code == 1
    assert asked == ["a.1", "b.1", "a.2", "b.2", "a.3", "b.3"]
    out = capsys.readouterr().out
    assert "e.default.b.1 has failed: an engine is gone" in out and "failed: e.default.b.1; the same command" in out
    assert "2 of 6: e.default.b.1" in out
    assert made() == (0, ["b.1"])


def test_two_failures_in_a_row_end_it(made):
    assert made("fails", 0, "fails", "fails") == (1, ["a.1", "b.1", "a.2", "b.2"])


def test_a_run_that_is_stopped_stops_the_others(made):
    assert made(0, 130) == (130, ["a.1", "b.1"])


def test_what_stands_behind_a_repeated_command_reaches_a_run_that_has_begun(made):
    assert made(0, 130) == (130, ["a.1", "b.1"])
    assert made(130, overrides=["rollout.concurrency=3"]) == (130, ["b.1"])
    first, second = (load(f"runs/e/e.default.{run}/run.toml").rollout.concurrency for run in ("a.1", "b.1"))
    assert first != 3 and second == 3, "one that is finished stays as it was made"
