"""`headrace restore`: a run as its backup has it, in a folder and in a Redis that do not have it.

    demo-30.tar ─ sums compared ─▶ runs/.demo.new/ ─┬─ run.toml for this folder ───────────────────▶ runs/demo/
                                                    └─ keys ─▶ --redis, REDIS_URL, redis.url; else a Redis that writes
                                                               its files into the folder, as that of `headrace up` does

The folder appears last; and hr:{demo}, without which no process finds the run, is the last of its keys.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from pipeline import backup_file, config_file, keys, ledger_copy
from pipeline.backup_file import ABOUT, KEYS, SUMS, BadBackup
from pipeline.config import Config
from pipeline.errors import ConfigError, HeadraceError, LedgerError, OtherSchema
from pipeline.redis_client import connect, find_url, trouble
from pipeline.redis_server import RedisServer
from pipeline.secrets import masked


def restore(file: Path, folder: Path = Path("runs"), redis_url: str | None = None) -> dict[str, Any]:
    """Make the run in `folder`/NAME and in Redis; nothing is started. Nothing that is there is written over.

    Raises BadBackup, OtherSchema, ConfigError if that folder is there, LedgerError if Redis has a run of this name.
    """
    about = backup_file.about(file)
    name = about["run"]
    if about["schema"] != keys.SCHEMA:
        raise OtherSchema(
            f"{file} was made by another headrace, which keeps a run in schema {about['schema']}, this one in "
            f"{keys.SCHEMA}: restore it with that headrace; a fork of its checkpoint may go on with this one"
        )
    target = folder / name
    if target.exists():
        raise ConfigError(f"{target} exists, and would have to be overwritten; give another --folder, or move it away")
    draft = folder / f".{name}.new"
    shutil.rmtree(draft, ignore_errors=True)  # of one that was killed
    try:
        draft.mkdir(parents=True)
        backup_file.unpack(file, draft)
        config = _moved(config_file.load(draft / "run.toml"), folder)
        if (config.run.name, config.digest) != (name, about["digest"]):
            raise BadBackup(f"{file}: its run.toml is not that of the run {name!r} of digest {about['digest']}")
        (draft / "run.toml").write_text(config_file.to_toml(config))
        url = find_url(redis_url, config.redis.url)
        if url is None:
            with _own_server(draft / "redis") as client:
                _make_keys(client, name, draft)
            _place(draft, target)
        else:
            with connect(url) as client:
                _make_keys(client, name, draft)
                try:
                    _place(draft, target)
                except BaseException:
                    ledger_copy.forget(client, name)
                    raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    shown = {"run": name, "folder": str(target), "version": about["version"], "checkpoint": about["checkpoint"]}
    again = f"headrace up {target / 'run.toml'}"
    return shown | {"next": f"{again} --redis {masked(redis_url)}" if redis_url else again}


def _moved(config: Config, folder: Path) -> Config:
    """The same run in another folder; a model in the run's own folder has moved with it."""
    moved = config.model_copy(update={"run": config.run.model_copy(update={"folder": folder})})
    path = config.model.path
    if path is not None and path.is_relative_to(config.folder):
        inside = moved.folder / path.relative_to(config.folder)
        moved = moved.model_copy(update={"model": config.model.model_copy(update={"path": inside})})
    return moved


@contextlib.contextmanager
def _own_server(folder: Path) -> Iterator[redis.Redis]:
    server = RedisServer.start(folder)
    try:
        with connect(server.url) as client:
            yield client
    finally:
        server.stop()


def _make_keys(client: redis.Redis, run: str, draft: Path) -> None:
    """All or none. Raises LedgerError if Redis has the run."""
    own = keys.run(run).encode()
    last: list[ledger_copy.Command] = []

    def others() -> Iterator[ledger_copy.Command]:
        for command in backup_file.read_keys(draft):
            if command[1] == own:
                last.append(command)
            else:
                yield command

    try:
        _refuse_run(client, run)
        ledger_copy.forget(client, run)  # of a restore that was killed: without hr:{run} they are nobody's
        try:
            ledger_copy.make(client, run, others())
            ledger_copy.make(client, run, last)
        except BaseException:  # Ctrl-C, too
            ledger_copy.forget(client, run)
            raise
    except redis.exceptions.OutOfMemoryError as error:
        raise HeadraceError(f"this Redis has no room for the run {run!r} ({error}): raise its maxmemory") from None
    except redis.RedisError as error:
        raise HeadraceError(f"the run {run!r} cannot be written to this Redis: {trouble(error)}") from None


def _refuse_run(client: redis.Redis, run: str) -> None:
    if client.exists(keys.run(run)):
        raise LedgerError(
            f"this Redis has a run {run!r}, which would have to be overwritten; name another with --redis, or end "
            f"and delete that run: redis-cli --scan --pattern '{keys.run(run)}*' | xargs -d '\\n' redis-cli DEL"
        )


def _place(draft: Path, target: Path) -> None:
    for part in (ABOUT, SUMS):
        (draft / part).unlink()
    shutil.rmtree(draft / KEYS)
    draft.rename(target)
