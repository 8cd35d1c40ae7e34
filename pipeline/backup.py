"""`headrace backup`: a run at one moment as one file, whether it is up or not; `headrace restore` goes on from it.

    newest checkpoint c, and all else that the folder has ─ opened ┐ a file that is open stays, whoever deletes it
    Redis, at one moment, which needs no batch below c ─ cut ──────┤
    the weights that the ledger names at that moment ─ opened ─────┴─▶ backup_file.py

Resumed from it, the run's trainer begins at c and is given batches c, c + 1, … as it was before. Left out are older
checkpoints and weights, logs, and Redis's own files. Nothing in it is secret: no setting of a run is, nor a key of it.

A run that goes on meanwhile deletes what a newer checkpoint covers. If that was faster than the reading, all is done
again, a few times.
"""

import contextlib
import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline import checkpoint_folder, keys, ledger_copy
from pipeline.backup_file import Writer
from pipeline.checkpoint_folder import DamagedCheckpoint
from pipeline.config import Config
from pipeline.coordinator import Coordinator
from pipeline.errors import ConfigError, HeadraceError
from pipeline.ledger_copy import Cut, Moved
from pipeline.reports import ledger_of
from pipeline.run_folder import LOCK, find_run
from pipeline.weights import MANIFEST

ATTEMPTS = 5
APART = {"checkpoints", "weights"}  # of which not everything goes along
LEFT_OUT = APART | {LOCK, "redis", "logs", "tensorboard", "wandb"}


def backup(run: str | None, file: Path | None = None, redis_url: str | None = None) -> dict[str, Any]:
    """Write the run to `file`, by default NAME-VERSION.tar here, which appears whole or not at all.

    Raises ConfigError if that exists, DamagedCheckpoint, or HeadraceError if the run cannot be read.
    """
    config = find_run(run)
    if file is not None and not file.absolute().parent.is_dir():
        raise ConfigError(f"{file.parent}: no such folder, expected one for the backup; make it")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a large model has more files than the 1024 of a shell
    for _ in range(ATTEMPTS):
        try:
            return _backup(config, file, redis_url)
        except (Moved, FileNotFoundError) as error:
            moved = error
    raise HeadraceError(
        f"the run {config.run.name!r} has gone on faster than it could be read, {ATTEMPTS} times ({moved}): "
        f"`headrace down {config.run.name}`, then this again, then `headrace up`"
    )


def _backup(config: Config, file: Path | None, redis_url: str | None) -> dict[str, Any]:
    began, name = time.monotonic(), config.run.name
    with contextlib.ExitStack() as stack:
        with ledger_of(str(config.folder), redis_url) as ledger:
            ledger.wait_for_run(config.digest, timeout_s=0)
            checkpoint = checkpoint_folder.newest(config.folder / "checkpoints")
            opened = {path: stack.enter_context(path.open("rb")) for path in _files(config, checkpoint)}
            written = _digests(config, checkpoint) if checkpoint else {}
            cut = ledger_copy.cut(ledger.client, name)
            version, covered = int(cut.fields["version"]), int(checkpoint.name) if checkpoint else 0
            if int(cut.fields["oldest"]) > covered:
                raise Moved(f"batches from {covered} on were forgotten while the folder was read")
            for path in _weights(config, cut):
                opened[path] = stack.enter_context(path.open("rb"))
            file = file or Path(f"{name}-{version}.tar")
            if file.exists():
                raise ConfigError(f"{file} exists, and would have to be overwritten; name another file, or delete it")
            draft = file.with_name(f".{file.name}.new")
            stack.callback(lambda: draft.unlink(missing_ok=True))
            target = stack.enter_context(draft.open("wb"))
            about = {
                "run": name,
                "schema": keys.SCHEMA,
                "digest": config.digest,
                "version": version,
                "checkpoint": covered if checkpoint else None,
                "time_ms": time.time_ns() // 1_000_000,
            }
            writer = Writer(target, name, about)
            writer.add_keys(_commands(ledger, cut))
        for path, source in opened.items():
            writer.add_file(str(path.relative_to(config.folder)), source)
        _compare(written, writer.finish())
        target.flush()
        os.fsync(target.fileno())
        draft.rename(file)
    size = round(file.stat().st_size / 1e6, 1)
    shown = {"run": name, "file": str(file), "version": version, "checkpoint": about["checkpoint"], "MB": size}
    return shown | {"seconds": round(time.monotonic() - began, 1), "next": f"headrace restore {file}"}


def _files(config: Config, checkpoint: Path | None) -> Iterator[Path]:
    for path in sorted(config.folder.iterdir()):
        if path.name not in LEFT_OUT and not path.name.startswith(".") and path.suffix != ".new":  # drafts
            yield from filter(Path.is_file, sorted(path.rglob("*")) if path.is_dir() else [path])
    if checkpoint:
        yield from sorted(checkpoint.iterdir())


def _weights(config: Config, cut: Cut) -> Iterator[Path]:
    """Of version 0, and of whatever else the ledger names and the disk still has."""
    there = {version: config.folder / json.loads(record)["path"] for version, record in cut.versions.items()}
    there.setdefault(0, config.folder / "weights" / "0")  # before the trainer has published it
    for version, folder in sorted(there.items()):
        if (folder / MANIFEST).is_file():
            yield from sorted(folder.iterdir())
        elif version == int(cut.fields["version"]):
            raise Moved(f"{folder} is gone, the weights of its newest version")


def _commands(ledger: Coordinator, cut: Cut) -> Iterator[list[Any]]:
    """What may be deleted at any moment first."""
    payloads = keys.trajectories(ledger.run, "").encode()
    for stream in sorted(cut.streams, key=lambda stream: not stream.key.startswith(payloads)):
        yield from ledger_copy.entries(ledger.client, stream, whole=stream.key.startswith(payloads))
    yield from cut.commands


def _digests(config: Config, checkpoint: Path) -> dict[str, str]:
    """Of the checkpoint's files, as they were written: name in the run's folder -> sha256. Raises DamagedCheckpoint."""
    try:
        files = checkpoint_folder.read_state(checkpoint)["files"]
    except DamagedCheckpoint:
        if checkpoint_folder.newest(checkpoint.parent) != checkpoint:
            raise Moved(f"{checkpoint} is gone, and newer ones are there") from None
        raise
    return {str((checkpoint / name).relative_to(config.folder)): digest for name, digest in files.items()}


def _compare(written: dict[str, str], found: dict[str, str]) -> None:
    """A checkpoint that is not what was written is no backup. Raises DamagedCheckpoint."""
    for name, digest in written.items():
        if found.get(name) != digest:
            raise DamagedCheckpoint(
                f"{name} is not what was written: `headrace up` sets this checkpoint aside and goes on from the one "
                "before; then back up again"
            )
