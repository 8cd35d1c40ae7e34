"""The recipes inside the package: run files to start from, whole or as what they change in another.

    grpo.toml                demo.toml                      mine.toml
    # GRPO (arXiv …          # Multi-turn math …            # GRPO (arXiv …
    base = "demo"            [run] name = "demo"   ──▶      [run] name = "mine"
    [advantage] …            [data] [rollout] …             [data] [rollout] [advantage] …

What `headrace init` writes is whole: nothing outside the file decides about a run.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import takewhile
from pathlib import Path

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.container import Container
from tomlkit.items import Table

from pipeline.config_file import load
from pipeline.errors import ConfigError


def recipes() -> dict[str, Traversable]:
    """Name -> file."""
    found = files("pipeline").joinpath("recipes").iterdir()
    return {path.name.removesuffix(".toml"): path for path in sorted(found, key=lambda path: path.name)}


def described() -> list[dict[str, str]]:
    """Name and first comment of each."""
    comments = {name: _head(path.read_text()) for name, path in recipes().items()}
    return [
        {"recipe": name, "about": " ".join(line.removeprefix("#").strip() for line in head)}
        for name, head in comments.items()
    ]


def whole(recipe: str) -> TOMLDocument:
    """A recipe with everything of its base that it does not change, and the comments of both."""
    text = recipes()[recipe].read_text()
    own = tomlkit.parse(text)
    base = own.pop("base", None)
    if base is None:
        return own
    settings = tomlkit.dumps(whole(base))
    settings = settings.splitlines()[len(_head(settings)) :]
    document = tomlkit.parse("\n".join([*_head(text), *settings, ""]))
    _change(document, own)
    return document


def write(name: str, recipe: str, folder: Path = Path()) -> Path:
    """{folder}/{name}.toml from a recipe, with run.name set. Raises ConfigError rather than overwrite a file."""
    path = folder / f"{name}.toml"
    if Path(name).name != name:
        raise ConfigError(f"{name!r} is no run's name: expected letters, digits, '.', '_' and '-', and no folder")
    if recipe not in (known := recipes()):
        raise ConfigError(f"no recipe {recipe!r}; there are {', '.join(known)} (`headrace recipes` describes them)")
    document = whole(recipe)
    document["run"]["name"] = name
    try:
        with path.open("x") as file:
            file.write(tomlkit.dumps(document).rstrip() + "\n")
    except FileExistsError:
        raise ConfigError(f"{path} exists already and is left as it is; choose another name") from None
    try:
        load(path)
    except ConfigError:
        path.unlink()
        raise
    return path


def _change(table: Container | Table, changes: Container | Table) -> None:
    """Table into table, key by key; anything else is replaced, with the comment behind it."""
    for key, value in changes.items():
        if isinstance(value, Table) and key in table:
            _change(table[key], value)
        else:
            table[key] = value


def _head(text: str) -> list[str]:
    """The comment that a file begins with, line by line."""
    return list(takewhile(lambda line: line.startswith("#"), text.splitlines()))
