"""The curves of a run as one picture, from the lines its trainer and its evaluations append.

    metrics.jsonl  one line per update      ┌ reward, held-out success ─┬ staleness ┬ reliability ┐
    evals.jsonl    one line per evaluation  ├ lengths ─────┬ time ──────┼ mismatch ─┼ Brier score ┤ ──▶ curves.png
                                            └──────────────┴────────────┴───────────┴─────────────┘      or .svg

Any key may be missing from any line, and the run may still be going: what there is so far is drawn.
"""

import os
from pathlib import Path

from pipeline import jsonl
from pipeline.errors import HeadraceError
from pipeline.plot_panels import calibration, idle, lengths, mismatch, number, points, reliability, reward, staleness

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


def plot(run_folder, kind="png"):
    """Draw {run_folder}/curves.png (or .svg: `kind`) from metrics.jsonl and evals.jsonl, and return its path.

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
        figure = Figure(figsize=(14, 7), dpi=130, layout="constrained")
        figure.suptitle(headline(folder.resolve().name, updates, evals), x=0.01, ha="left", fontsize=13)
        grid = figure.add_gridspec(2, 4, height_ratios=(1.25, 1))
        reward(figure.add_subplot(grid[0, :2]), updates, evals)
        staleness(figure.add_subplot(grid[0, 2]), updates)
        for panel, place in ((lengths, 0), (idle, 1), (mismatch, 2), (calibration, 3)):
            panel(figure.add_subplot(grid[1, place]), updates)
        versions = [line["version"] for line in updates + evals]
        for axes in figure.axes:
            axes.set_xlabel("version (optimizer updates)")
            axes.set_xlim(min(versions) - 0.7, max(versions) + 0.7)
            if axes.has_data():
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=(1, 2, 5, 10)))
        reliability(figure.add_subplot(grid[0, 3]), updates)
        path = folder / f"curves.{kind}"
        # Renamed into place, so that a viewer that reloads it never meets half a picture.
        drawing = folder / f"{path.name}.part"
        figure.savefig(drawing, format=kind)
        os.replace(drawing, path)
    return path


def read(path):
    """The lines by version, ascending. A resumed run writes an update again: the last line of a version counts."""
    lines = {line["version"]: line for line in jsonl.read(path) if number(line.get("version")) is not None}
    return [lines[version] for version in sorted(lines)]


def headline(name, updates, evals):
    _, success = points(evals, "success")
    parts = [name, f"{len(updates)} update{'s' * (len(updates) != 1)}"]
    if success:
        parts.append("held-out success " + " → ".join(f"{s:.2f}" for s in dict.fromkeys((success[0], success[-1]))))
    return "  ·  ".join(parts)
