"""The picture of a run, drawn from the files that a run writes."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from pipeline import plot_panels
from pipeline.plot import NothingToPlot, plot, read
from pipeline.plot_panels import trailing_mean

PNG = b"\x89PNG\r\n\x1a\n"


def update(version):
    return {
        "version": version,
        "reward": 0.3 + 0.01 * version,
        "staleness": {"0": 20, "2": 44} if version % 2 else {"1": 64},
        "mismatch_kl": 2e-4,
        "brier": 0.2,
        "calibration": [[0, 0.0, 0.0]] * 8 + [[40, 34.0, 30.0], [24, 23.0, 24.0]],
        "mean_length": 40 + version,
        "wait_seconds": {"ready": 1.0, "fetch": 0.1, "publish": 0.2, "checkpoint": 0.0},
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


def test_an_svg_is_drawn_too_and_names_what_it_shows(tmp_path):
    write(tmp_path / "metrics.jsonl", map(update, range(1, 31)))
    path = plot(tmp_path, "svg")
    assert path.name == "curves.svg"
    assert ElementTree.parse(path).getroot().tag.endswith("}svg")


def test_the_panels_show_what_the_lines_say(tmp_path):
    figure = Figure()
    updates = [update(version) for version in range(1, 31)]
    axes = figure.add_subplot()
    plot_panels.reliability(axes, updates)
    marks = axes.collections[-1].get_offsets()  # of the last 20 updates: mean value, mean outcome
    assert marks.tolist() == [pytest.approx([34 / 40, 30 / 40]), pytest.approx([23 / 24, 1])]
    axes = figure.add_subplot()
    plot_panels.idle(axes, updates)
    bars = {bar.get_label(): bar[0].get_height() for bar in axes.containers}
    assert bars == {
        "update": pytest.approx(100 * 4 / 5.3),
        "waits for data": pytest.approx(100 / 5.3),
        "fetch": pytest.approx(10 / 5.3),
        "publish": pytest.approx(20 / 5.3),
    }


@pytest.mark.parametrize(
    ("updates", "evals"),
    [
        ([update(1)], []),
        ([], [{"version": 0, "success": 0.4}]),
        ([{"version": 1}], []),
        ([{"version": 1, "idle_seconds": 1.0, "step_seconds": 4.0}], []),
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
