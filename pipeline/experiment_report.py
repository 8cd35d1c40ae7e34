"""The report of an experiment, from the runs that there are: it may be written again at any time.

report.md     what was compared and how, tables, figures, which runs are left out, that all began alike
points.csv    the raw points        *.png   experiment_figures.py
"""

from collections.abc import Sequence
from typing import Any

from pipeline import experiment_figures, experiment_points, experiment_table, run_folder, summary
from pipeline.errors import HeadraceError
from pipeline.experiment_spec import Experiment
from pipeline.table import table


class NotAlike(HeadraceError):
    """Runs of one experiment that did not begin alike: nothing can be concluded from their difference."""

    code = "NOT_ALIKE"


def write(experiment: Experiment) -> str:
    """report.md, points.csv and the figures; returns the tables for a terminal. Raises NotAlike."""
    folder, budget, baseline = experiment.folder, experiment.budget, experiment.spec.baseline
    begun = dict(experiment_points.begun(experiment))
    _check_alike(begun)
    lines = experiment_points.curves(experiment)
    rewards = {key: experiment_points.rewards(of_run) for key, of_run in lines.items()}
    rows = experiment_table.summary(rewards, budget, baseline)
    pairs = experiment_table.pairs(rewards, budget, baseline)
    short = [
        {"setting": setting, "method": method, "seed": seed, "has": said}
        for (setting, method, seed), said in experiment_table.short(rewards, budget).items()
    ]
    figures = experiment_figures.draw(experiment, lines)
    run_folder.write(folder / "points.csv", experiment_points.as_csv(lines))
    counted = f"{len(rewards) - len(short)} of {len(rewards)} runs reached the budget of {budget} updates"
    parts = [
        f"# {experiment.spec.name}",
        f"{counted}. Differences are method minus `{baseline}` of equal setting and seed, in points (hundredths), "
        "mean ± sample standard deviation over pairs; a pair counts if both of its runs reached the budget. AUC: "
        "trapezoids over the mean reward of each update; end reward: mean of the last five; C_10: Eq. 8 of arXiv "
        "2608.24870.",
        "## Result",
        markdown(rows),
        *(f"![{title}]({path.name})" for title, path in figures.items()),
        "## Each pair",
        markdown(pairs),
        "## Left out",
        markdown(short),
        "## All runs began alike",
        markdown([{"runs": len(begun), **found} for found in list(begun.values())[:1]]),
        f"Minutes a run: {_minutes(experiment)}.",
        "## The file",
        f"```toml\n{experiment.text.strip()}\n```",
    ]
    run_folder.write(folder / "report.md", "\n\n".join(parts) + "\n")
    below = f"\nleft out:\n{table(short)}\n" if short else ""
    return f"{counted}\n\n{table(rows)}\n{below}\nreport:  {folder / 'report.md'}"


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table of rows with the same keys."""
    if not rows:
        return "None."
    cells = [list(rows[0]), ["---"] * len(rows[0]), *([str(cell) for cell in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _check_alike(begun: dict[str, dict[str, str]]) -> None:
    first, *others = begun.items() or [("", {})]
    for name, found in others:
        if wrong := [what for what in found if found[what] != first[1][what]]:
            raise NotAlike(
                f"{name} began with other {' and '.join(wrong)} than {first[0]}; delete its folder: it is made again"
            )


def _minutes(experiment: Experiment) -> str:
    """Of the last `up` of each finished run."""
    found = [summary.minutes(trial.config) for trial in experiment.trials if summary.is_finished(trial.config)]
    return f"{sum(found) / len(found):.1f} on the average of {len(found)}" if found else "none is finished"
