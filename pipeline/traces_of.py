"""Whose traces are in a run's folder: those of two teachers, or of a script and a teacher, are not mixed.

    begin() ──▶ traces.json {"teacher"} ──▶ traces.jsonl grows ──▶ traces.json {"teacher", counts}, traces.bin
                       └────── check(), before anything starts ──────┘

All else that decides how traces come out cannot change in a folder; cold_start.teacher can, as other addresses may.
"""

import json

from pipeline import run_folder
from pipeline.config import Config
from pipeline.errors import ConfigError

FILES = ("traces.jsonl", "traces.bin")


def check(config: Config) -> None:
    """Raises ConfigError if there are traces of another than `cold_start.teacher`."""
    path = config.folder / "traces.json"
    there = [name for name in FILES if (config.folder / name).exists()]
    if not there or not path.exists():
        return
    try:
        theirs = json.loads(path.read_text())["teacher"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: expected whose traces are beside it, found: {error!r}; delete it") from None
    ours = config.cold_start.teacher
    if theirs != ours:
        raise ConfigError(
            f"cold_start.teacher: {config.folder} has traces of {_shown(theirs)}, this run's would be of "
            f"{_shown(ours)}; delete {' and '.join(there)} there, or set it back. If that is the same teacher at "
            "another address, delete traces.json alone"
        )


def begin(config: Config) -> None:
    """Before the first trace: write down whose they are. Raises ConfigError as `check` does."""
    check(config)
    run_folder.write(config.folder / "traces.json", json.dumps({"teacher": config.cold_start.teacher}) + "\n")


def _shown(teacher: list[str]) -> str:
    return ", ".join(teacher) or "a script"
