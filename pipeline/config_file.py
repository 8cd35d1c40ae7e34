"""The TOML file of a run: read into a Config, and written back.

    run.toml ──┐
               ├──load()──▶ Config ──to_toml()──▶ run.toml of the run's folder, every setting resolved
    overrides ─┘

An unknown key is an error that names its path and the nearest known key. `section.key=value` overrides a file's value.
"""

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomlkit
from pydantic import BaseModel, ValidationError

from pipeline.config import Config
from pipeline.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


def load(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a run's TOML file and apply `section.key=value` overrides (values in TOML syntax, bare words as strings).

    Raises ConfigError with one line per problem: the key's path, what was expected, what was found, the nearest key.
    """
    _, values = read(path, "`headrace init NAME --recipe demo` writes one")
    if "base" in values:
        raise ConfigError(
            f"{path}: holds only what differs from the recipe {values['base']!r}; "
            f"`headrace init NAME --recipe {Path(path).stem}` writes the whole file"
        )
    return of_values(values, overrides, path)


def of_values(values: dict[str, Any], overrides: Sequence[str], source: Path | str) -> Config:
    """The same of what a TOML file would hold; source: what messages name."""
    for override in overrides:
        _apply(values, override)
    return validated(Config, values, source)


def read(path: Path | str, hint: str) -> tuple[str, dict[str, Any]]:
    """A TOML file's text, and what it holds; hint: where there is none, how to come by one. Raises ConfigError."""
    try:
        text = Path(path).read_text()
        return text, tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; {hint}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; expected a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def validated(model: type[Model], values: dict[str, Any], source: Path | str) -> Model:
    """Raises ConfigError, as `load` does."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [line for e in error.errors() for line in _describe(e, model).splitlines()]
        raise ConfigError("\n".join(f"{source}: {line}" for line in lines)) from None


def to_toml(config: Config) -> str:
    """The resolved settings; `load` reads them back to an equal Config."""
    return tomlkit.dumps(config.model_dump(mode="json", exclude_none=True))


def _apply(values: dict[str, Any], override: str) -> None:
    dotted, separator, text = override.partition("=")
    if not separator or not all(dotted.split(".")):
        raise ConfigError(f"override {override!r}: expected section.key=value, such as run.seed=2")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *sections, key = dotted.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"override {override!r}: {section} is a value, not a section")
    values[key] = value


def _describe(error: Any, of: type[BaseModel]) -> str:
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = _fields_at(of, error["loc"][:-1])
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
        return f"{place}: unknown key; {hint}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        return f"{place}: missing; it has no default"
    if not place:  # of config_rules.py: its lines name their settings themselves
        return message
    return f"{place}: {message[0].lower()}{message[1:]}, found {error['input']!r}"


def _fields_at(model: Any, location: tuple) -> list[str]:
    for part in location:
        annotation: Any = model.model_fields[part].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        model = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
    return list(model.model_fields)
