"""The curves of a run as one picture, from the lines its trainer and its evaluations append.

    metrics.jsonl  one line per update      ┌ reward, held-out success ────┬ staleness ─────┐
    evals.jsonl    one line per evaluation  ├ trainer vs engine ┬ idle ────┴┬ value forecasts┤ ──▶ curves.png
                                            └───────────────────┴───────────┴────────────────┘

Any key may be missing from any line, and the run may still be going: what there is so far is drawn.
"""

import math
import os
from collections import Counter
from pathlib import Path

from pipeline import jsonl
from pipeline.errors import HeadraceError

TRAIL = 5  # updates in the trailing mean of a noisy curve, as in the figures of arXiv 2608.24870
BLUE, ORANGE, GREY = "#2166ac", "#d6604d", "#8c8c8c"
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
}


class NothingToPlot(HeadraceError):
    """No point of any curve can be drawn."""

    code = "NOTHING"


def plot(run_folder):
    """Draw {run_folder}/curves.png from metrics.jsonl and evals.jsonl, and return its path.

    Raises NothingToPlot before the first update or evaluation, HeadraceError without matplotlib.
    """
    folder = Path(run_folder)
    updates, evals = read(folder / "metrics.jsonl"), read(folder / "evals.jsonl")
    if not updates and not evals:
        raise NothingToPlot(
            f"nothing to plot in {folder}: expected at least one line in metrics.jsonl or evals.jsonl, found none; "
            "the first appears after the first update or evaluation (headrace status shows what the run waits for)"
        )
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise HeadraceError(f"plotting needs matplotlib ({error}): pip install 'headrace[plot]'") from error

    with rc_context(STYLE):
        figure = Figure(figsize=(12, 6.4), dpi=130, layout="constrained")
        figure.suptitle(headline(folder.resolve().name, updates, evals), x=0.01, ha="left", fontsize=13)
        grid = figure.add_gridspec(2, 6, height_ratios=(1.25, 1))
        reward(figure.add_subplot(grid[0, :4]), updates, evals)
        staleness(figure.add_subplot(grid[0, 4:]), updates)
        mismatch(figure.add_subplot(grid[1, :2]), updates)
        idle(figure.add_subplot(grid[1, 2:4]), updates)
        calibration(figure.add_subplot(grid[1, 4:]), updates)
        versions = [line["version"] for line in updates + evals]
        for axes in figure.axes:
            axes.set_xlabel("version (optimizer updates)")
            axes.set_xlim(min(versions) - 0.7, max(versions) + 0.7)
            if axes.has_data():
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=(1, 2, 5, 10)))
        path = folder / "curves.png"
        # Renamed into place, so that a viewer that reloads it never meets half a picture.
        drawing = folder / "curves.png.part"
        figure.savefig(drawing, format="png")
        os.replace(drawing, path)
    return path


def read(path):
    """The lines by version, ascending. A resumed run writes an update again: the last line of a version counts."""
    lines = {line["version"]: line for line in jsonl.read(path) if number(line.get("version")) is not None}
    return [lines[version] for version in sorted(lines)]


def number(value):
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def points(lines, key):
    """(versions, values) of the lines that have a finite number under `key`."""
    found = [(line["version"], line[key]) for line in lines if number(line.get(key)) is not None]
    return [version for version, _ in found], [value for _, value in found]


def trailing_mean(values):
    return [sum(window) / len(window) for window in (values[max(0, i - TRAIL + 1) : i + 1] for i in range(len(values)))]


def headline(name, updates, evals):
    _, success = points(evals, "success")
    parts = [name, f"{len(updates)} update{'s' * (len(updates) != 1)}"]
    if success:
        parts.append("held-out success " + " → ".join(f"{s:.2f}" for s in dict.fromkeys((success[0], success[-1]))))
    return "  ·  ".join(parts)


def noisy(axes, versions, values, name):
    """Each update faintly, their trailing mean boldly; few updates get dots, as a single one has no line."""
    dots = {"marker": "o", "markersize": 3} if len(values) <= 150 else {}
    axes.plot(versions, values, color=BLUE, alpha=0.35, linewidth=1, **dots)
    axes.plot(versions, trailing_mean(values), color=BLUE, linewidth=2, label=f"{name}, mean of {TRAIL} updates")


def empty(axes, message):
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, message, transform=axes.transAxes, ha="center", va="center", color=GREY)


def reward(axes, updates, evals):
    axes.set_title("Does it learn?")
    axes.set_ylabel("reward, success rate")
    versions, rewards = points(updates, "reward")
    evaluated, success = points(evals, "success")
    if not rewards and not success:
        return empty(axes, "no reward and no evaluation yet")
    if rewards:
        noisy(axes, versions, rewards, "training reward")
    if success:
        errors = [number(line.get("stderr")) or 0 for line in evals if number(line.get("success")) is not None]
        style = {
            "color": ORANGE,
            "marker": "o",
            "markersize": 6 if len(success) <= 40 else 3,
            "linewidth": 1,
            "capsize": 3,
            "zorder": 3,
        }
        axes.errorbar(evaluated, success, yerr=errors, label="held-out success ± standard error", **style)
    if all(0 <= value <= 1 for value in rewards + success):
        axes.set_ylim(-0.03, 1.03)
    axes.legend(loc="best")


def staleness(axes, updates):
    from matplotlib import colormaps

    axes.set_title("How old was what it learned from?")
    axes.set_ylabel("trajectories in the update")
    counted = [
        (line["version"], Counter({int(age): count for age, count in line["staleness"].items()}))
        for line in updates
        if line.get("staleness")
    ]
    ages = sorted({age for _, counts in counted for age in counts})
    if not ages:
        return empty(axes, "no staleness recorded yet")
    versions, floor = [version for version, _ in counted], [0] * len(counted)
    shades = colormaps["YlGnBu"]
    for age in ages:
        heights = [counts[age] for _, counts in counted]
        shade = shades(0.3 + 0.65 * (age - ages[0]) / max(1, ages[-1] - ages[0]))
        axes.bar(versions, heights, bottom=floor, width=1, color=shade, label=f"{age}")
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set_ylim(0, max(floor) * 1.25)
    axes.grid(False, axis="x")
    axes.legend(title="staleness (versions)", ncols=min(6, len(ages)), loc="upper center", handlelength=1)


def mismatch(axes, updates):
    axes.set_title("Do trainer and engines agree?")
    axes.set_ylabel("mismatch KL (nats per token)")
    versions, divergence = points(updates, "mismatch_kl")
    if not divergence:
        return empty(axes, "no mismatch KL recorded yet")
    noisy(axes, versions, divergence, "KL")
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    axes.legend(loc="best")


def idle(axes, updates):
    axes.set_title("Does the trainer wait for data?")
    axes.set_ylabel("idle share of the time (%)")
    timed = [
        line for line in updates if number(line.get("idle_seconds")) is not None and number(line.get("step_seconds"))
    ]
    if not timed:
        return empty(axes, "no timings recorded yet")
    # step_seconds is the update alone, without the waiting before it
    shares = [100 * line["idle_seconds"] / (line["idle_seconds"] + line["step_seconds"]) for line in timed]
    noisy(axes, [line["version"] for line in timed], shares, "idle")
    axes.set_ylim(-3, 103)
    axes.legend(loc="best")


def calibration(axes, updates):
    axes.set_title("Do the values forecast outcomes?")
    axes.set_ylabel("Brier score (0 is perfect)")
    versions, scores = points(updates, "brier")
    if not scores:
        return empty(axes, "no Brier score recorded yet")
    noisy(axes, versions, scores, "frozen values")
    axes.axhline(0.25, color=GREY, linestyle="--", linewidth=1, label="always saying one half")
    axes.set_ylim(0, max(0.4, *scores) * 1.1)
    axes.legend(loc="upper right")
