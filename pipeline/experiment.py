"""`headrace experiment SPEC.toml`: matched runs, one after another, and what they say together.

    start ─▶ version 0, first values     once; every run begins with them
      └─▶ run 1 ─▶ run 2 ─▶ …            each as `headrace up` makes it       ─▶ report.md, points.csv, *.png
             └ runs/NAME/NAME.{setting}.{method}.{seed}/                         at the end, and at any time: --report

The same command goes on after whatever ended it: a run that is finished is not made again, one that was broken off
resumes. A run that fails is told, and the others are made all the same; two in a row are no accident, and end it.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline import experiment_report, experiment_spec, launch, preparation, summary, weights
from pipeline.config_file import load
from pipeline.config_rules import unwise
from pipeline.errors import ConfigError, HeadraceError
from pipeline.experiment_spec import Experiment, Trial
from pipeline.fork import link
from pipeline.run_folder import locked, open_folder

IN_A_ROW = 2  # failed runs
STOPPED = 130


def run(path: Path, overrides: Sequence[str], redis_url: str | None = None) -> int:
    """Make what is missing of the experiment; the exit code. Raises HeadraceError."""
    experiment = experiment_spec.read(path, overrides)
    launch.check(experiment.start, redis_url)
    for warning in {line: None for trial in experiment.trials for line in unwise(trial.config)}:
        print(f"warning: {warning}", flush=True)
    with locked(experiment.folder):
        _compare(experiment)
        (experiment.folder / "spec.toml").write_text(experiment.text)
        preparation.cold_start(experiment.start)
        if experiment.start.advantage.offline_rollouts:
            preparation.values(experiment.start)
        code = _make_runs(experiment, redis_url)
        print(f"\n{experiment_report.write(experiment)}")
    return code


def report(path: Path, overrides: Sequence[str]) -> str:
    """What the runs that there are say, without making any; in words for a terminal. Raises HeadraceError."""
    experiment = experiment_spec.read(path, overrides)
    if not experiment.folder.is_dir():
        raise ConfigError(f"{experiment.folder}: no such folder; without --report, the command makes it, and the runs")
    _compare(experiment)
    return experiment_report.write(experiment)


def _make_runs(experiment: Experiment, redis_url: str | None) -> int:
    failed, in_a_row = [], 0
    for number, trial in enumerate(experiment.trials, 1):
        if summary.is_finished(trial.config):
            continue
        print(f"\n{number} of {len(experiment.trials)}: {trial.name}", flush=True)
        try:
            code = launch.up(_begin(trial, experiment), [], redis_url)
        except ConfigError:
            raise
        except HeadraceError as error:
            print(f"{trial.name} has failed: {error}", flush=True)
            failed.append(trial.name)
            in_a_row += 1
            if in_a_row == IN_A_ROW:
                break
            continue
        if code == STOPPED:
            return code
        in_a_row = 0
    if failed:
        print(f"\nfailed: {', '.join(failed)}; the same command tries them again", flush=True)
    return 1 if failed else 0


def _compare(experiment: Experiment) -> None:
    """With what its folder has. Raises ConfigError if that has begun with other runs, or other settings.

    Seeds, methods and settings may be added to it; what has run is never left out in silence.
    """
    folder = experiment.folder
    if (folder / "run.toml").exists():
        raise ConfigError(f"{folder} is the folder of a run; give the experiment another name")
    ours = {config.run.name: config for config in (experiment.start, *(trial.config for trial in experiment.trials))}
    there = {path.parent.name: load(path) for path in sorted(folder.glob("*/run.toml"))}
    if gone := [name for name in there if name not in ours]:
        raise ConfigError(
            f"{folder} has runs that the file no longer asks for: {', '.join(gone)}; put their seeds, methods and "
            "settings back, or give the experiment another name"
        )
    for name, config in there.items():
        differences = config.differences(ours[name])
        if config.run.total_steps != ours[name].run.total_steps:
            differences.append(f"run.total_steps: {config.run.total_steps} → {ours[name].run.total_steps}")
        if differences:
            raise ConfigError(
                f"{folder} has begun with other settings, of {name}:\n"
                + "\n".join(f"    {line}" for line in differences)
                + "\nset these keys back, also behind the command, or give the experiment another name"
            )


def _begin(trial: Trial, experiment: Experiment) -> Path:
    """The run's folder with its settings as they are now, and version 0 of the start, whose files are linked; returns
    the path of its run.toml."""
    target = trial.config.folder / "weights"
    with locked(trial.config.folder):
        path = open_folder(trial.config, rewrite=True)
        if not weights.published(target):
            draft = target / ".0-start"
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(experiment.start.folder / "weights" / "0", draft, copy_function=link)
            draft.rename(target / "0")
    return path
