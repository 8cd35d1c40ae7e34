"""The file of an experiment: which runs it has, and that they differ in what is compared alone.

    recipe or run ─▶ start                     whose model, cold start and first values all runs begin with
         └─ + seed + method + setting ─▶ runs  {name}.{setting}.{method}.{seed}, each a Config of its own

    name = "ablation"
    recipe = "guessing"                        or run = "mine.toml"
    seeds = [1, 2, 3]
    baseline = "trajectory"                    differences are method minus baseline, of equal setting and seed

    [methods.token]
    [methods.trajectory]
    advantage.normalization = "trajectory"

    [settings.stale]                           none: one setting, the recipe's own
    buffers.max_staleness = 2

Redis knows a run by its name alone, so the experiment's is part of it. What decides how a run begins and how its
episodes are played is the same for all, and so is what they may spend: a method or setting that changes it is refused.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from pipeline import config_file, recipe_files
from pipeline.config import Config, flat
from pipeline.config_sections import NAME, Section
from pipeline.errors import ConfigError

START = "start"
# of all runs the same; the launcher's own besides
ALIKE = ("run", "model", "data", "environment", "rollout", "eval", "cold_start")
ALIKE_KEYS = ("advantage.values", "advantage.offline_rollouts", "advantage.mass")


class Spec(Section):
    """What the file says, before any run is made of it."""

    name: str = Field(pattern=NAME)
    folder: Path = Path("runs")
    recipe: str | None = None
    run: Path | None = None
    seeds: list[int] = Field(min_length=1)
    baseline: str
    methods: dict[str, dict[str, Any]] = Field(min_length=2)
    settings: dict[str, dict[str, Any]] = Field({"default": {}}, min_length=1)

    @model_validator(mode="after")
    def _possible(self) -> "Spec":
        if "." in self.name:
            raise ValueError(
                f"name = {self.name!r}: expected no dot; a run is {{name}}.{{setting}}.{{method}}.{{seed}}"
            )
        if (self.recipe is None) == (self.run is None):
            raise ValueError("expected one of recipe (a name of `headrace recipes`) and run (a run's TOML file)")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds = {self.seeds}: a seed is there twice; each makes one pair of runs")
        if self.baseline not in self.methods:
            raise ValueError(f"baseline = {self.baseline!r} is no method; there are {', '.join(self.methods)}")
        return self


@dataclass(frozen=True)
class Trial:
    """One run of an experiment."""

    setting: str
    method: str
    seed: int
    config: Config

    @property
    def name(self) -> str:
        return self.config.run.name


@dataclass(frozen=True)
class Experiment:
    """trials: seed by seed, so that pairs are whole as early as possible.
    text: the file as it was read, and what stood behind the command, as a comment."""

    spec: Spec
    text: str
    start: Config
    trials: list[Trial]

    @property
    def folder(self) -> Path:
        return self.spec.folder / self.spec.name

    @property
    def budget(self) -> int:
        """Updates of every run."""
        return self.start.run.total_steps


def read(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment of a file; `section.key=value` overrides are of all its runs. Raises ConfigError."""
    text, values = config_file.read(path, "expected an experiment's TOML file")
    spec = config_file.validated(Spec, values, path)
    if overrides:
        text = f"{text.rstrip()}\n\n# behind the command: {shlex.join(overrides)}\n"
    start = _start(spec, overrides)
    return Experiment(spec, text, start, list(_trials(spec, start, path)))


def _start(spec: Spec, overrides: Sequence[str]) -> Config:
    if spec.run is not None:
        base = config_file.load(spec.run, overrides)
    elif spec.recipe in (known := recipe_files.recipes()):
        base = config_file.of_values(recipe_files.whole(spec.recipe).unwrap(), overrides, f"recipe {spec.recipe}")
    else:
        raise ConfigError(f"recipe = {spec.recipe!r}: there are {', '.join(known)}")
    values = base.model_dump(mode="json", exclude_none=True)
    values["run"] |= {"name": START, "folder": str(spec.folder / spec.name)}
    return config_file.of_values(values, (), f"the start of {spec.name}")


def _trials(spec: Spec, start: Config, path: Path) -> Iterator[Trial]:
    for method, of_method in spec.methods.items():
        _check(f"{path}: methods.{method}", of_method, start)
    for setting, of_setting in spec.settings.items():
        _check(f"{path}: settings.{setting}", of_setting, start)
    for seed in spec.seeds:
        for setting, of_setting in spec.settings.items():
            for method, of_method in spec.methods.items():
                name = f"{spec.name}.{setting}.{method}.{seed}"
                if not re.fullmatch(NAME, name):
                    raise ConfigError(
                        f"{path}: {name!r} is no name of a run: expected at most 64 letters, digits, '.', '_' and '-', "
                        f"found {len(name)} characters; change the name of the experiment, the setting or the method"
                    )
                if both := dict(flat(of_method)).keys() & dict(flat(of_setting)).keys():
                    raise ConfigError(f"{path}: methods.{method} and settings.{setting} both set {', '.join(both)}")
                values = _begun(start)
                values["run"] |= {"name": name, "seed": seed}
                _merge(values, of_method)
                _merge(values, of_setting)
                config = config_file.of_values(values, (), f"{path}: {name}")
                if _spent(config) != _spent(start):
                    raise ConfigError(
                        f"{path}: {name} trains on {_spent(config)} trajectories an update, the recipe on "
                        f"{_spent(start)}: runs of one experiment spend the same (buffers.batch_size × group_size)"
                    )
                yield Trial(setting, method, seed, config)


def _check(place: str, changes: dict[str, Any], start: Config) -> None:
    for key, _ in flat(changes):
        if key.partition(".")[0] in ALIKE or key in ALIKE_KEYS:
            raise ConfigError(
                f"{place}: {key} is the same for all runs of an experiment, which begin and play alike; change it for "
                f"all of them, in the recipe or as {key}=… behind the command"
            )


def _begun(start: Config) -> dict[str, Any]:
    """The settings of a run that begins with version 0 and the first values of `start`."""
    values = start.model_dump(mode="json", exclude_none=True)
    values.pop("cold_start", None)
    values["model"] = {"dtype": start.model.dtype, "path": str(start.folder / "weights" / "0")}
    if start.advantage.offline_rollouts:
        values["advantage"]["values"] = str(start.folder)
    return values


def _spent(config: Config) -> int:
    return config.buffers.batch_size * config.buffers.group_size


def _merge(values: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = value
