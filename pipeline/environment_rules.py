"""What can be known of [environment] before one is opened, which only workers do. Part of config_rules.py.

    impossible_environment ─▶ refused, wherever the settings are read: a name that is none, a call longer than its step
    check_environment ──────▶ refused where a run begins: what this machine lacks

Where the built-in ones are is here too, for the names that there are.
"""

import difflib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.config import Config, Environment

BUILT_IN = {
    "math_tool": "workers.environments.math_tool:MathTool",
    "math_tir": "workers.environments.math_tir:MathTir",
    "number_guessing": "workers.environments.number_guessing:NumberGuessing",
    "reasoning_gym": "workers.environments.reasoning_gym:ReasoningGym",
    "single_turn": "workers.environments.single_turn:SingleTurn",
    "alfworld": "workers.environments.alfworld:AlfWorld",
}
WITH_TOOL = {"math_tool", "math_tir"}
NO_ALFWORLD = "alfworld plays games of the package alfworld, which compiles: pip install 'headrace[alfworld]'"
FORMS = f'{", ".join(map(repr, BUILT_IN))}, "path/to/file.py:Class" or "module:Class"'


def judges_mathematics(environment: "Environment") -> bool:
    """Whether math-verify is asked."""
    name = environment.name
    return name == "math_tir" or (name == "single_turn" and environment.options.get("verify") == "math")


def impossible_environment(config: "Config") -> Iterator[str]:
    environment, name = config.environment, config.environment.name
    if ":" not in name and name not in BUILT_IN:
        nearest = difflib.get_close_matches(name, BUILT_IN, 1)
        meant = f"did you mean {nearest[0]!r}? " if nearest else ""
        yield f"environment.name = {name!r} is not known; {meant}expected {FORMS}"
    if name in WITH_TOOL and environment.tool_timeout_s >= environment.step_timeout_s:
        yield (
            f"environment.tool_timeout_s = {environment.tool_timeout_s:g} is not below step_timeout_s = "
            f"{environment.step_timeout_s:g}, which a step's calls share; raise the latter"
        )
    for section, problems in {"data": config.data, "eval.data": config.eval.data}.items():
        if name == "alfworld" and problems is not None and problems.tasks:
            yield (
                f'environment.name = "alfworld" plays games of a folder, and {section}.tasks has none; set '
                f"{section}.path to one, such as `headrace environments alfworld` makes"
            )
    tries = environment.options.get("tries", 1)
    if name == "reasoning_gym" and isinstance(tries, int) and tries > environment.max_turns:
        yield (
            f"environment.options.tries = {tries} is above environment.max_turns = {environment.max_turns}, after "
            "which an episode ends; raise the latter"
        )
    if environment.episode_timeout_s > config.buffers.max_age_s:
        yield (
            f"environment.episode_timeout_s = {environment.episode_timeout_s:g} is above buffers.max_age_s = "
            f"{config.buffers.max_age_s:g}, after which the ledger gives the entry to another worker; raise max_age_s"
        )


def check_environment(environment: "Environment") -> None:
    """Raises ConfigError if this machine lacks what the environment is made of."""
    source = environment.name.rpartition(":")[0]
    if source.endswith(".py") and not Path(source).is_file():
        raise ConfigError(f"environment.name = {environment.name!r}: no file {source} in {Path.cwd()}")
    if judges_mathematics(environment) and importlib.util.find_spec("math_verify") is None:
        raise ConfigError(f"{environment.name} judges with math_verify: pip install 'headrace[math]'")
    if environment.name == "alfworld":
        check_alfworld()


def check_alfworld() -> None:
    """Raises ConfigError without the package that has its games."""
    if importlib.util.find_spec("alfworld") is None:
        raise ConfigError(NO_ALFWORLD)
