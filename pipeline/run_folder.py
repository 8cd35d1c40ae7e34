"""The folder that a run writes, {run.folder}/{run.name}, and who may write it.

demo.toml ──open_folder()──▶ runs/demo/run.toml     the resolved settings, which every process of the run is given
                             runs/demo/up.lock      held by the one `headrace up` that runs; says how to reach it.
                                                    A report on a run that is not up holds it for a moment too
"demo", demo.toml or nothing ──find_run()──▶ Config  of the run that a report is about
"""

import contextlib
import fcntl
import json
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline import checkpoint_folder
from pipeline.config import Config
from pipeline.config_file import load, to_toml
from pipeline.errors import ConfigError, HeadraceError

LOCK = "up.lock"
REPORT_S = 30.0  # a report holds the lock for less
POLL_S = 0.05


class AlreadyUp(HeadraceError):
    """Another `headrace up` holds the run."""

    code = "UP"


def open_folder(config: Config, rewrite: bool = False) -> Path:
    """Make the run's folder and write its run.toml; returns the path of run.toml.

    A folder that exists goes on with the same run, and keeps its run.toml unless `rewrite`: what holds the lock
    decides what may change, `headrace up`, or `cold-start` and `values` before it. Raises ConfigError, with every
    differing key, if it was made with other settings than `config`; addresses, ports, counts of processes and
    total_steps may change.
    """
    path = config.folder / "run.toml"
    if path.exists():
        if differences := load(path).differences(config):
            raise ConfigError(
                f"the run {config.run.name!r} exists in {config.folder} with other settings:\n"
                + "\n".join(f"    {line}" for line in differences)
                + "\ngive the new run another name (run.name=…), set these keys back, or delete the folder"
                + _what_was_trained(config, differences)
            )
    elif config.folder.exists() and any(entry.name != LOCK for entry in config.folder.iterdir()):
        raise ConfigError(f"{config.folder} exists, but is no run's folder (no run.toml); choose another run.name")
    if rewrite or not path.exists():
        config.folder.mkdir(parents=True, exist_ok=True)
        write(path, to_toml(config))
    return path


def write(path: Path, text: str) -> None:
    """At once or not at all."""
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    draft.write_text(text)
    draft.rename(path)


def _what_was_trained(config: Config, differences: list[str]) -> str:
    """How it goes on with the changed settings."""
    metrics, newest = config.folder / "metrics.jsonl", checkpoint_folder.newest(config.folder / "checkpoints")
    if not metrics.exists() or metrics.stat().st_size == 0:
        return ", in which nothing has been trained yet"
    if newest is None:
        return ""
    changed = (line.partition(": ")[0] + "=" + line.rpartition(" → ")[2] for line in differences)
    command = shlex.join(["headrace", "fork", config.run.name, "--from", newest.name, *changed])
    return f"; or go on from its newest checkpoint with them, as a new run: {command}"


@contextlib.contextmanager
def locked(folder: Path, report: bool = False) -> Iterator["Lock"]:
    """Hold the run's folder; the kernel lets go of it whenever and however this process ends. Raises AlreadyUp.

    report: for the moment of an answer; whoever comes meanwhile waits for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + REPORT_S
    try:
        while not _taken(file):
            holder = _facts(folder)
            if not holder.get("report") or time.monotonic() > deadline:
                raise AlreadyUp(
                    f"{folder} is up already, as process {holder.get('pid', '?')}; "
                    f"watch it with `headrace status {folder.name}`, stop it with `headrace down {folder.name}`"
                )
            time.sleep(POLL_S)
        lock = Lock(file)
        lock.write(pid=os.getpid(), report=report)
        yield lock
        os.ftruncate(file, 0)
    finally:
        os.close(file)


def _taken(file: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _facts(folder: Path) -> dict[str, Any]:
    """What the holder wrote; it may be about to write it, or to take it back."""
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        with contextlib.suppress(ValueError):
            return json.loads((folder / LOCK).read_text())
        time.sleep(POLL_S)
    return {}


class Lock:
    """The open lock file; what is written into it tells others how to reach the run."""

    def __init__(self, file: int):
        self._file, self._facts = file, {}

    def write(self, **facts: Any) -> None:
        self._facts |= facts
        text = json.dumps(self._facts, indent=1).encode()
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))


def holder_of(folder: Path) -> dict[str, Any] | None:
    """What the `headrace up` that holds `folder` wrote: pid, redis. None if the run is not up."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if _taken(file, fcntl.LOCK_SH):
            return None
        holder = _facts(folder)
        return holder if "pid" in holder and not holder["report"] else None
    finally:
        os.close(file)


def is_up(given: str | None) -> bool:
    """Whether a `headrace up` on this machine holds that run."""
    try:
        return holder_of(find_run(given).folder) is not None
    except ConfigError:
        return False


def wait_for(path: Path, timeout_s: float) -> None:
    """Until another process of the run has made `path`, which appears whole. Raises HeadraceError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > deadline:
            raise HeadraceError(f"{path}: expected within {timeout_s:g} s, and nobody has made it; see the run's logs")
        time.sleep(POLL_S)


def find_run(given: str | None, runs: Path = Path("runs")) -> Config:
    """The run a report is about: a TOML file, a folder, a name in `runs`, or the only one there (or up).

    Raises ConfigError with the names that there are.
    """
    if given is not None:
        for path in (runs / given / "run.toml", Path(given) / "run.toml", Path(given), Path(f"{given}.toml")):
            if path.is_file():
                config = load(path)
                resolved = config.folder / "run.toml"
                return load(resolved) if resolved.is_file() else config
    known = sorted(path.parent for path in runs.glob("*/run.toml"))
    if given is None:
        candidates = known if len(known) == 1 else [folder for folder in known if holder_of(folder) is not None]
        if len(candidates) == 1:
            return load(candidates[0] / "run.toml")
    names = ", ".join(folder.name for folder in known) or "none"
    wanted = "which run?" if given is None else f"no run {given!r}:"
    raise ConfigError(f"{wanted} expected a name in {runs}/ or a RUN.toml; there: {names}")
