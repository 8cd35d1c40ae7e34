"""Rows of a file or data set, one after another, whatever it is stored in.

    train.jsonl                  JSON lines                                        "line 7", {"question": …}
    train.parquet                                                                  "row 7",  {"prompt": [{…}], …}
    folder[@split]               a Hugging Face data set, as save_to_disk wrote it   ⋮
    hf:org/name[:config][@split]   … or of the hub, which needs the network once   "row 9",  Unusable("not valid JSON")

Rows are read as they are asked for. Lines and rows are numbered from 1.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError

HUB = "hf:"
KINDS = f'JSON lines, .parquet, a folder of Dataset.save_to_disk or "{HUB}org/name[:config][@split]"'


class Unusable(ValueError):
    """Why one row cannot be used; the others can."""


def stem(path: Path) -> str:
    """What ids of rows without an id begin with."""
    return path.name.partition("@")[0].partition(":")[0].removesuffix(path.suffix)


def rows(path: Path, section: str) -> Iterator[tuple[str, dict[str, Any] | Unusable]]:
    """Each row's place in the file, and the row. Raises ConfigError, which names {section}.path."""
    place = f"{section}.path = {path}"
    if str(path).startswith(HUB):
        yield from _numbered(_of_hub(str(path).removeprefix(HUB), place))
    elif path.suffix == ".parquet" and path.is_file():
        yield from _numbered(_of_parquet(path, place))
    elif path.is_file():
        yield from _json_lines(path, place)
    else:
        folder, _, split = str(path).partition("@") if not path.exists() else (str(path), "", "")
        if not Path(folder).is_dir():
            raise ConfigError(f"{place}: no such file; expected {KINDS}")
        yield from _numbered(_of_folder(folder, split, place))


def _json_lines(path: Path, place: str) -> Iterator[tuple[str, dict[str, Any] | Unusable]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line := line.strip():
                    yield f"line {number}", _json(line)
    except OSError as error:
        raise ConfigError(f"{place}: cannot be read: {error}") from None


def _json(line: bytes) -> dict[str, Any] | Unusable:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Unusable(f"not valid JSON: {error}")
    return (
        row
        if isinstance(row, dict)
        else Unusable(f"expected a JSON object, found {line[:80].decode(errors='replace')}")
    )


def _numbered(found: Iterator[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, row in enumerate(found, 1):
        # Through JSON, so that a record read back from Redis equals the one read here (dates, decimals, …).
        yield f"row {number}", json.loads(json.dumps(row, default=str))


def _of_parquet(path: Path, place: str) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise _needs_extra(place, error) from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(1024):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{place}: cannot be read as Parquet: {error}") from None


def _of_folder(folder: str, split: str, place: str) -> Iterator[dict[str, Any]]:
    datasets = _datasets(place)
    try:
        found = datasets.load_from_disk(folder)
    except Exception as error:  # whatever its readers raise
        raise ConfigError(
            f"{place}: expected a folder that Dataset.save_to_disk wrote, found: {type(error).__name__}: {error}"
        ) from None
    yield from _split(datasets, found, split, place)


def _of_hub(name: str, place: str) -> Iterator[dict[str, Any]]:
    datasets = _datasets(place)
    name, _, split = name.partition("@")
    name, _, configuration = name.partition(":")
    try:
        found = datasets.load_dataset(name, configuration or None)
    except Exception as error:  # whatever its builders raise, and what the network does
        offline = ", which HF_HUB_OFFLINE forbids here" if datasets.config.HF_HUB_OFFLINE else ""
        raise ConfigError(
            f"{place}: cannot be loaded: {type(error).__name__}: {error}\nthe first time it needs the network{offline}"
            f"; where there is none, save it elsewhere with datasets.load_dataset({name!r}).save_to_disk(FOLDER), and "
            "set this to FOLDER"
        ) from None
    yield from _split(datasets, found, split, place)


def _split(datasets: Any, found: Any, split: str, place: str) -> Any:
    if not isinstance(found, datasets.DatasetDict):
        if split:
            raise ConfigError(f"{place}: it has no splits; leave out @{split}")
        return found
    if not split and len(found) == 1:
        (split,) = found
    if split not in found:
        raise ConfigError(f"{place}: expected the name of a split behind an @, one of {', '.join(found)}")
    return found[split]


def _datasets(place: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise _needs_extra(place, error) from None
    datasets.disable_progress_bars()
    return datasets


def _needs_extra(place: str, error: ImportError) -> ConfigError:
    return ConfigError(f"{place}: needs more than is installed ({error}): pip install 'headrace[data]'")
