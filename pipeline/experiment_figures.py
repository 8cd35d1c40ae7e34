"""The figures of an experiment, after arXiv 2608.24870 and beyond it.

    rewards.png       Figure 1: matched replicates thin, their mean thick, a standard error shaded; a panel a setting
    diagnostics.png   Figure 2: policy KL, clip fraction, gradient norm; a row a setting
    centers.png       Equation 5: the center that the loss saw of each update, and what its covariance predicts
    differences.png   method minus baseline in AUC, over η and over optimizer steps, where settings differ in them

Curves are trailing means of five updates. Runs that have not reached the budget are thin, as far as they are, and in no
mean, unless none has reached it: then the mean is of all, and ends where the shortest does.
"""

import math
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np

from advantage.metrics import auc_trapezoid
from pipeline.errors import HeadraceError
from pipeline.experiment_points import Curves, rewards
from pipeline.experiment_spec import Experiment
from pipeline.experiment_table import difference, whole
from pipeline.plot import STYLE
from pipeline.plot_panels import BLUE, GREY, ORANGE, empty, number, trailing_mean

COLORS = (BLUE, ORANGE, "#1f9d6b", "#7a5ac8", "#f0b03c", "#6bb9c4", GREY)
DIAGNOSTICS = {"ppo_kl": "policy KL (nats a token)", "clip_fraction": "clip fraction", "grad_norm": "gradient norm"}
AXES = {"buffers.max_staleness": "η, updates", "trainer.minibatches": "optimizer steps an update"}


def draw(experiment: Experiment, lines: Curves) -> dict[str, Path]:
    """The figures that there is anything for: title -> file. Raises HeadraceError without matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise HeadraceError(f"figures need matplotlib ({error}): pip install 'headrace[plot]'") from error
    settings, drawn = list(experiment.spec.settings), {}
    if not any(lines.values()):
        return drawn
    with rc_context(STYLE):
        for title, name, rows, columns, of_one_kind, panels in (
            ("Reward", "rewards", 1, len(settings), "row", _rewards),
            ("Optimization", "diagnostics", len(settings), len(DIAGNOSTICS), "col", _diagnostics),
            ("The center of the loss", "centers", 2, len(settings), "row", _centers),
            ("Where the difference is", "differences", 1, len(AXES), "row", _differences),
        ):
            figure = Figure(figsize=(4.6 * columns, 3.6 * rows), dpi=110, layout="constrained")
            axes = figure.subplots(rows, columns, squeeze=False, sharey=of_one_kind)
            panels(axes, experiment, lines)
            if any(each.has_data() for each in figure.axes):
                drawn[title] = experiment.folder / f"{name}.png"
                draft = drawn[title].with_name(f".{name}.new")
                figure.savefig(draft, format="png")
                draft.rename(drawn[title])
    return drawn


def _rewards(axes, experiment: Experiment, lines: Curves) -> None:
    for panel, setting in zip(axes[0], experiment.spec.settings, strict=True):
        panel.set_title(setting)
        panel.set_ylabel("reward")
        _curves(panel, experiment, lines, setting, "reward", replicates=True)
        if panel.has_data():
            panel.legend(loc="best")


def _diagnostics(axes, experiment: Experiment, lines: Curves) -> None:
    for row, setting in zip(axes, experiment.spec.settings, strict=True):
        for panel, (name, title) in zip(row, DIAGNOSTICS.items(), strict=True):
            panel.set_title(f"{setting}: {title}")
            _curves(panel, experiment, lines, setting, name)
    if axes[0, 0].has_data():
        axes[0, 0].legend(loc="best")


def _curves(
    panel,
    experiment: Experiment,
    lines: Curves,
    setting: str,
    name: str,
    replicates: bool = False,
    linestyle: str = "-",
    name_of: str = "{}",
) -> None:
    panel.set_xlabel("update")
    for color, method in zip(cycle(COLORS), experiment.spec.methods, strict=False):
        found = []
        for (of, own, _), of_run in lines.items():
            values = [number(line.get(name)) for line in of_run]
            if (of, own) == (setting, method) and values and None not in values:
                found.append(trailing_mean(values))
        averaged = [curve for curve in found if len(curve) == experiment.budget] or found
        for curve in found:
            if replicates or curve not in averaged:
                panel.plot(range(1, len(curve) + 1), curve, color=color, alpha=0.3, linewidth=0.8)
        if averaged:
            updates, mean, error = average(averaged)
            panel.plot(updates, mean, color=color, linewidth=2, linestyle=linestyle, label=name_of.format(method))
            panel.fill_between(updates, mean - error, mean + error, color=color, alpha=0.2, linewidth=0)


def average(curves: list[list[float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Updates that all have reached, their mean, and its standard error (0 of a single curve)."""
    common = min(map(len, curves))
    values = np.array([curve[:common] for curve in curves])
    error = values.std(axis=0, ddof=1) / math.sqrt(len(curves)) if len(curves) > 1 else np.zeros(common)
    return np.arange(1, common + 1), values.mean(axis=0), error


def _centers(axes, experiment: Experiment, lines: Curves) -> None:
    """Over updates, and against each other: whitened over trajectories, runs lie on the diagonal; over tokens, on 0."""
    for (over, against), setting in zip(axes.T, experiment.spec.settings, strict=True):
        over.set_title(setting)
        over.set_ylabel("ΣLÃ / ΣL that the loss saw")
        _curves(over, experiment, lines, setting, "advantage_center")
        _curves(over, experiment, lines, setting, "measure_mismatch", linestyle="--", name_of="{}: predicted")
        against.set_xlabel("predicted: Cov(L, Ã) / mean L, whitened over trajectories")
        against.set_ylabel("ΣLÃ / ΣL that the loss saw")
        correlations = []
        for color, method in zip(cycle(COLORS), experiment.spec.methods, strict=False):
            of_method = [line for (of, own, _), run in lines.items() if (of, own) == (setting, method) for line in run]
            if of_method:
                x, y = ([line[name] for line in of_method] for name in ("measure_mismatch", "advantage_center"))
                against.scatter(x, y, s=8, color=color, alpha=0.5, linewidths=0, label=method)
                correlations += [line["length_correlation"] for line in of_method]
        if correlations:
            over.legend(loc="best", fontsize=7)
            against.axline((0, 0), slope=1, color=GREY, linestyle="--", linewidth=1, zorder=0)
            against.legend(loc="best", title=f"corr(L, A) {np.mean(correlations):+.2f}")


def _differences(axes, experiment: Experiment, lines: Curves) -> None:
    found = whole({key: rewards(of_run) for key, of_run in lines.items()}, experiment.budget)
    baseline = experiment.spec.baseline
    for panel, (key, title) in zip(axes[0], AXES.items(), strict=True):
        panel.set_xlabel(title)
        panel.set_ylabel(f"AUC minus that of {baseline}, points")
        for color, (method, others, settings) in zip(cycle(COLORS), _series(experiment, key), strict=False):
            points = []
            for x, setting in settings:
                if paired := difference(found, setting, method, baseline, auc_trapezoid):
                    points.append((x, 100 * paired[1].mean, 100 * paired[1].sd))
            if points:
                x, mean, sd = zip(*sorted(points), strict=True)
                sd = [0 if math.isnan(each) else each for each in sd]
                panel.errorbar(x, mean, yerr=sd, color=color, marker="o", capsize=3, label=f"{method} {others}".strip())
                panel.set_xticks(x)
        if panel.has_data():
            panel.axhline(0, color=GREY, linewidth=0.8)
            panel.legend(loc="best", title="mean ± sample s.d.")
        else:
            empty(panel, "settings do not differ in this, or no pair is whole")


def _series(experiment: Experiment, key: str) -> Iterator[tuple[str, str, list[tuple[int, str]]]]:
    """Method, what is held fixed in words, and [(value of `key`, setting)]; nothing if no settings differ in `key`."""
    values = {
        trial.setting: {name: _value(trial.config, name) for name in AXES}
        for trial in experiment.trials
        if trial.method == experiment.spec.baseline
    }
    if len({found[key] for found in values.values()}) < 2:
        return
    (fixed,) = (name for name in AXES if name != key)
    for method in experiment.spec.methods:
        if method != experiment.spec.baseline:
            for held in sorted({found[fixed] for found in values.values()}):
                settings = [(found[key], setting) for setting, found in values.items() if found[fixed] == held]
                yield method, f"({AXES[fixed].partition(',')[0]} = {held})", settings


def _value(config, key: str) -> int:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)
