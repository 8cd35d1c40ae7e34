"""The report of an experiment from what runs leave behind, whole, broken off and not begun."""

import csv
import json

import pytest
from matplotlib.figure import Figure

from pipeline import experiment, experiment_figures
from pipeline.config_file import to_toml
from pipeline.errors import ConfigError
from pipeline.experiment_points import curves
from pipeline.experiment_report import NotAlike, markdown, write
from pipeline.experiment_spec import read
from pipeline.weights import write_manifest

SPEC = """
name = "e"
recipe = "guessing"
seeds = [1, 2, 3]
baseline = "trajectory"
[methods.trajectory]
advantage.normalization = "trajectory"
[methods.token]
[settings.k1-eta0]
[settings.k4-eta0]
trainer.minibatches = 4
[settings.k4-eta2]
trainer.minibatches = 4
buffers.max_staleness = 2
"""
SHARED = "run.total_steps=3"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The experiment with runs of seeds 1 and 2: token is 20 points better, and broken off in one of them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    found = read(tmp_path / "spec.toml", [SHARED])
    begin(found.start)
    for trial in found.trials:
        if trial.seed < 3:
            begin(trial.config)
            whole = (trial.setting, trial.method, trial.seed) != ("k4-eta2", "token", 2)
            lines = [line(v, trial.method, trial.seed) for v in range(3 if whole else 2)]
            text = "".join(json.dumps(each) + "\n" for each in lines)
            (trial.config.folder / "metrics.jsonl").write_text(text)
    return found


def begin(config, logprob=-1.0, outcome=1.0, problem="1a", top_k=-1):
    """What a run has recorded when its workers start."""
    weights = config.folder / "weights" / "0"
    weights.mkdir(parents=True, exist_ok=True)
    write_manifest(weights, 0, [1, 2], [logprob], "float32")
    (config.folder / "run.toml").write_text(to_toml(config))
    taken = {"weights": "2b", "rollout.top_k": top_k, "taken_from": f"anywhere/{config.run.name}"}
    (config.folder / "values.json").write_text(json.dumps(taken))
    line = {"id": "g-0", "problem": problem, "outcomes": [outcome, 0.0]}
    (config.folder / "values.jsonl").write_text(json.dumps(line) + "\n")


def line(version, method, seed):
    center = -0.3 - 0.1 * version
    return {
        "version": version,
        "reward": 0.3 + 0.1 * version + 0.2 * (method == "token") + 0.01 * seed,
        "advantage_center": 0.0 if method == "token" else center,
        "measure_mismatch": center,
        "length_correlation": -0.8,
        "ppo_kl": 0.01,
        "clip_fraction": 0.02,
        "grad_norm": 1.0 + seed,
    }


def test_the_report_has_the_table_and_names_every_run_that_is_left_out(made):
    said = write(made)
    report = (made.folder / "report.md").read_text()
    assert "11 of 18 runs reached the budget of 3 updates" in said and "11 of 18 runs" in report
    assert "| k1-eta0 | token | 2 | 0.615 | 0.615 | 2 | +20.00 ± 0.00 (2 of 2 positive) |" in report
    assert "| k4-eta2 | token | 1 | 0.610 | 0.610 | 1 | +20.00 (1 of 1 positive) |" in report
    assert "| k4-eta2 | token | 2 | 2 of 3 updates |" in report
    for setting in made.spec.settings:
        for method in made.spec.methods:
            assert f"| {setting} | {method} | 3 | 0 of 3 updates |" in report
    assert SPEC.strip() in report and "1 on the average" not in report
    for name in ("rewards", "diagnostics", "centers", "differences"):
        assert f"({name}.png)" in report and (made.folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_every_point_is_in_the_csv_and_what_was_not_recorded_is_empty(made):
    write(made)
    rows = list(csv.DictReader((made.folder / "points.csv").read_text().splitlines()))
    assert len(rows) == 11 * 3 + 2
    assert rows[4] == rows[4] | {"setting": "k1-eta0", "method": "token", "seed": "1", "update": "2", "reward": "0.61"}
    assert rows[4]["entropy"] == "" and rows[4]["measure_mismatch"] == "-0.4"


def test_a_report_before_the_first_run_names_them_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    with pytest.raises(ConfigError, match="runs/e: no such folder; without --report, the command makes it"):
        experiment.report(tmp_path / "spec.toml", [])
    found = read(tmp_path / "spec.toml")
    found.folder.mkdir(parents=True)
    assert "0 of 18 runs reached the budget of 30 updates" in write(found)
    assert "png" not in (found.folder / "report.md").read_text()


@pytest.mark.parametrize(
    ("what", "other"),
    [
        ("weights", {"logprob": -2.0}),
        ("prompts", {"problem": "1b"}),
        ("first values", {"outcome": 0.0}),
        ("decoding and environment", {"top_k": 5}),
    ],
)
def test_runs_that_did_not_begin_alike_are_not_compared(made, what, other):
    begin(made.trials[3].config, **other)
    with pytest.raises(NotAlike, match=f"e.k4-eta0.token.1 began with other {what} than start; delete its folder"):
        write(made)


def test_runs_without_first_values_are_compared_by_their_weights(made, tmp_path):
    found = read(tmp_path / "spec.toml", [SHARED, "advantage.offline_rollouts=0"])
    for config in (made.start, *(trial.config for trial in made.trials if trial.seed < 3)):
        (config.folder / "values.json").unlink()
    write(found)
    report = (found.folder / "report.md").read_text()
    assert "## All runs began alike\n\n| runs | weights |\n| --- | --- |\n| 13 |" in report
    begin(found.trials[3].config, logprob=-2.0)
    with pytest.raises(NotAlike, match=r"e.k4-eta0.token.1 began with other weights than start"):
        write(found)


def test_the_difference_is_drawn_over_staleness_and_over_steps_with_the_other_held(made):
    over = {key: list(experiment_figures._series(made, key)) for key in experiment_figures.AXES}
    assert over["buffers.max_staleness"] == [
        ("token", "(optimizer steps an update = 1)", [(0, "k1-eta0")]),
        ("token", "(optimizer steps an update = 4)", [(0, "k4-eta0"), (2, "k4-eta2")]),
    ]
    assert over["trainer.minibatches"] == [
        ("token", "(η = 0)", [(1, "k1-eta0"), (4, "k4-eta0")]),
        ("token", "(η = 2)", [(4, "k4-eta2")]),
    ]
    axes = Figure().subplots(1, 2, squeeze=False)
    experiment_figures._differences(axes, made, curves(made))
    drawn = [container.lines[0].get_ydata().tolist() for container in axes[0, 1].containers]
    assert drawn == [[pytest.approx(20), pytest.approx(20)], [pytest.approx(20)]]


def test_the_mean_is_of_the_runs_that_reached_the_budget_and_the_others_are_thin(made):
    def lengths(lines, setting):
        panel = Figure().subplots()
        experiment_figures._curves(panel, made, lines, setting, "ppo_kl")
        return [(drawn.get_linewidth() >= 1, len(drawn.get_xdata())) for drawn in panel.lines]

    found = curves(made)
    assert lengths(found, "k4-eta0") == [(True, 3), (True, 3)]
    assert lengths(found, "k4-eta2") == [(True, 3), (False, 2), (True, 3)], "seed 2 of token has 2 of 3 updates"
    short = {key: of_run[: 3 - key[2]] for key, of_run in found.items()}
    assert lengths(short, "k4-eta2") == [(True, 1), (True, 1)], "there is no whole run: all, as far as the shortest"


def test_the_mean_of_replicates_ends_where_the_shortest_does():
    updates, mean, error = experiment_figures.average([[0.0, 1.0, 1.0], [1.0, 1.0]])
    assert (updates.tolist(), mean.tolist()) == ([1, 2], [0.5, 1.0])
    assert error.tolist() == [pytest.approx(0.5), 0.0]  # s.d. √½ over √2
    assert experiment_figures.average([[0.2]])[2].tolist() == [0.0]


def test_what_has_run_is_never_left_out_in_silence_nor_goes_on_or_is_reported_with_other_settings(made, tmp_path):
    def again(text, *overrides):
        (tmp_path / "spec.toml").write_text(text)
        return experiment.report(tmp_path / "spec.toml", overrides)

    assert "11 of 24 runs" in again(SPEC.replace("[1, 2, 3]", "[1, 2, 3, 4]"), SHARED)
    with pytest.raises(ConfigError, match=r"no longer asks for: e.k1-eta0.token.2, e.k1-eta0.traj.*; put their seeds"):
        again(SPEC.replace("[1, 2, 3]", "[1, 3]"), SHARED)
    with pytest.raises(ConfigError, match=r"other settings, of e.k1-eta0.token.1:\n    optimizer.lr: 0.0004 → 0.1"):
        again(SPEC, SHARED, "optimizer.lr=0.1")
    with pytest.raises(ConfigError, match=r"run.total_steps: 3 → 30\nset these keys back, also behind the command"):
        again(SPEC)


def test_the_report_has_what_stood_behind_the_command(made, tmp_path):
    experiment.report(tmp_path / "spec.toml", [SHARED, "rollout.concurrency=3"])
    report = (made.folder / "report.md").read_text()
    assert f"{SPEC.strip()}\n\n# behind the command: {SHARED} rollout.concurrency=3" in report
    assert "behind" not in read(tmp_path / "spec.toml").text


def test_an_experiment_named_as_a_run_is_refused(made, tmp_path):
    (made.folder / "run.toml").touch()
    with pytest.raises(ConfigError, match="runs/e is the folder of a run; give the experiment another name"):
        experiment.report(tmp_path / "spec.toml", [SHARED])


def test_a_table_in_markdown():
    assert markdown([{"a": 1, "b": "x"}, {"a": 2, "b": "-"}]) == "| a | b |\n| --- | --- |\n| 1 | x |\n| 2 | - |"
    assert markdown([]) == "None."
