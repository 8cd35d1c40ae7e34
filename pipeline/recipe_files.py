"""The recipes inside the package: complete run files to start from."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from pipeline.config_file import load
from pipeline.errors import ConfigError


def recipes() -> dict[str, Traversable]:
    """Name -> file."""
    found = files("pipeline").joinpath("recipes").iterdir()
    return {path.name.removesuffix(".toml"): path for path in sorted(found, key=lambda path: path.name)}


def described() -> list[dict[str, str]]:
    """Name and first comment of each."""
    return [{"recipe": name, "about": _comment(path.read_text())} for name, path in recipes().items()]


def write(name: str, recipe: str, folder: Path = Path()) -> Path:
    """{folder}/{name}.toml from a recipe, with run.name set. Raises ConfigError rather than overwrite a file."""
    known, path = recipes(), folder / f"{name}.toml"
    if recipe not in known:
        raise ConfigError(f"no recipe {recipe!r}; there are {', '.join(known)} (`headrace recipes` describes them)")
    lines = known[recipe].read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith("name = "))  # of [run], which comes first
    lines[at] = f'name = "{name}"\n'
    try:
        with path.open("x") as file:
            file.writelines(lines)
    except FileExistsError:
        raise ConfigError(f"{path} exists already and is left as it is; choose another name") from None
    try:
        load(path)
    except ConfigError:
        path.unlink()
        raise
    return path


def _comment(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)
