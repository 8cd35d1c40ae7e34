"""`headrace tensorboard`: a run's lines as TensorBoard's event files, while it goes on or afterwards.

    metrics.jsonl  {"version": 12, "reward": 0.8, "wait_seconds": {"ready": 2.4}, …} ─▶ train/reward, wait_seconds/ready
    evals.jsonl    {"version": 15, "success": 0.7, …}                                ─▶ eval/success     step: version

The lines are the truth. Each start writes all of them anew and then removes the files of an earlier one, and so does a
trainer that goes back to a checkpoint and makes its last updates again: no point is ever there twice.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.errors import HeadraceError
from pipeline.plot import read

LOOK_S = 2.0
FILES = "events.out.tfevents.*"


def follow(run_folder: Path, on: bool, say: Callable[[str], None]) -> Path:
    """Write {run_folder}/tensorboard, and return it; `on`: go on as lines come, until Ctrl-C."""
    writer = EventFiles(run_folder)
    try:
        with suppress(KeyboardInterrupt):
            writer.look()
            say(f"{writer.points} points in {writer.folder}; look: tensorboard --logdir {writer.folder}")
            while on:
                time.sleep(LOOK_S)
                writer.look()
    finally:
        writer.close()
    return writer.folder


class EventFiles:
    """`look` writes what is new in the lines of a run's folder."""

    def __init__(self, run_folder: Path):
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise HeadraceError(
                f"event files need tensorboardX ({error}): pip install 'headrace[tensorboard]'"
            ) from error
        self._open = SummaryWriter
        self._run, self.folder = run_folder, run_folder / "tensorboard"
        self._writer = None
        self._written: dict[str, list[dict[str, Any]]] = {}
        self.points = 0

    def look(self) -> None:
        found = {"train": read(self._run / "metrics.jsonl"), "eval": read(self._run / "evals.jsonl")}
        if self._writer is None or any(found[kind][: len(old)] != old for kind, old in self._written.items()):
            self._begin_anew()
        times = {line["version"] + 1: line["time_ms"] / 1000 for line in found["train"] if "time_ms" in line}
        for kind, lines in found.items():
            for line in lines[len(self._written[kind]) :]:
                at = line.get("time_ms", 0) / 1000 or times.get(line["version"], time.time())
                for tag, value in scalars(kind, line):
                    self._writer.add_scalar(tag, value, line["version"], walltime=at)
                    self.points += 1
        self._written = found

    def _begin_anew(self) -> None:
        self.close()
        earlier = list(self.folder.glob(FILES))
        self._writer = self._open(str(self.folder), flush_secs=1, filename_suffix=f".{time.time_ns()}")
        for path in earlier:
            path.unlink()
        self._written, self.points = {"train": [], "eval": []}, 0

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def scalars(kind: str, line: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """(tag, number) of a line: of a group such as wait_seconds each of its own; counts of staleness as shares."""
    for name, value in line.items():
        if isinstance(value, dict):
            whole = sum(value.values()) if name == "staleness" else 1
            yield from ((f"{name}/{key}", part / whole) for key, part in value.items() if isinstance(part, int | float))
        elif isinstance(value, int | float) and name not in ("version", "time_ms"):
            yield f"{kind}/{name}", float(value)
