"""The picture of a run, drawn from the files that a run writes."""

import json
import subprocess
import sys

import pytest

from pipeline.plot import NothingToPlot, plot, read, trailing_mean

PNG = b"\x89PNG\r\n\x1a\n"


def update(version):
    return {
        "version": version,
        "reward": 0.3 + 0.01 * version,
        "staleness": {"0": 20, "2": 44} if version % 2 else {"1": 64},
        "mismatch_kl": 2e-4,
        "brier": 0.2,
        "idle_seconds": 1.0,
        "step_seconds": 4.0,
    }


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_is_drawn_next_to_its_metrics(tmp_path):
    write(tmp_path / "metrics.jsonl", map(update, range(1, 31)))
    evals = [{"version": v, "success": 0.3 + v / 100, "stderr": 0.03, "trajectories": 200} for v in (0, 10, 20, 30)]
    write(tmp_path / "evals.jsonl", evals)
    path = plot(tmp_path)
    assert path == tmp_path / "curves.png" and path.read_bytes().startswith(PNG)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curves.png", "evals.jsonl", "metrics.jsonl"]


@pytest.mark.parametrize(
    ("updates", "evals"),
    [
        ([update(1)], []),
        ([], [{"version": 0, "success": 0.4}]),
        ([{"version": 1}], []),
        ([{"version": 1, "reward": None, "brier": float("nan"), "step_seconds": 0.0, "idle_seconds": 0.0}], []),
        ([{"version": 1, "reward": -3.5}, {"version": 2, "reward": 12.0, "staleness": {}}], []),
    ],
)
def test_one_point_and_missing_keys_are_drawn_without_a_warning(tmp_path, updates, evals):
    write(tmp_path / "metrics.jsonl", updates)
    write(tmp_path / "evals.jsonl", evals)
    assert plot(tmp_path).read_bytes().startswith(PNG)


def test_a_run_without_a_point_says_so_instead_of_drawing_nothing(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(NothingToPlot, match="expected at least one line"):
        plot(tmp_path)
    assert not (tmp_path / "curves.png").exists()


def test_a_torn_line_is_left_out_and_a_repeated_update_counts_once(tmp_path):
    lines = [{"version": 2, "reward": 0.1}, {"version": 1, "reward": 0.0}, {"version": 2, "reward": 0.9}]
    write(tmp_path / "metrics.jsonl", lines)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"version": 3, "rew')
    assert read(tmp_path / "metrics.jsonl") == [{"version": 1, "reward": 0.0}, {"version": 2, "reward": 0.9}]


def test_the_trailing_mean_is_of_the_last_five_or_of_what_there_is():
    assert trailing_mean([1, 3, 5, 7, 9, 11]) == [1, 2, 3, 4, 5, 7]


def test_matplotlib_is_imported_only_when_something_is_drawn():
    code = "import sys, pipeline.plot; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
