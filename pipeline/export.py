"""`headrace export`: one version of a run as a plain Hugging Face folder, for whatever else loads models.

    weights/30-3f9a/ is there, in the dtype that is asked for ─▶ its files, once their digests were compared
    only checkpoints/30/ is ─▶ python -m trainer.export ─▶ the same, from its float32 weights

Neither needs Redis or a GPU, and the run may be up. The folder appears whole or not at all.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline import checkpoint_folder, programs, weights
from pipeline.config import Config
from pipeline.errors import ConfigError
from pipeline.run_folder import find_run
from pipeline.supervisor import Supervisor
from pipeline.weights import MANIFEST, BadWeights, Manifest

EXPORT_S = 6 * 3600.0  # of a model of any size, on any disk


def export(run: str | None, folder: Path, version: int | None = None) -> dict[str, Any]:
    """Write `version` of the run, by default its newest one, to `folder`. Raises ConfigError if that exists."""
    config = find_run(run)
    if folder.exists():
        raise ConfigError(f"{folder} exists, and would have to be overwritten; name another folder, or delete it")
    there = versions(config)
    if version is None and there:
        version = there[-1]
    if version not in there:
        names = ", ".join(map(str, there)) or "none"
        wanted = "nothing to export" if version is None else f"no version {version}"
        raise ConfigError(f"{wanted} of the run {config.run.name!r}: there are weights or checkpoints of {names}")
    try:
        write(config, version, folder, config.model.dtype, shutil.copyfile)
    except FileNotFoundError as error:
        raise ConfigError(f"{error.filename} has just been deleted: export a newer version") from None
    return {"run": config.run.name, "version": version, "folder": str(folder), "dtype": config.model.dtype}


def versions(config: Config) -> list[int]:
    """Of whole weights and of checkpoints, in order."""
    published = {manifest.version for _, manifest in _manifests(config)}
    return sorted(published | {int(path.name) for path in checkpoint_folder.all_of(config.folder / "checkpoints")})


def write(config: Config, version: int, folder: Path, dtype: str, copy: Callable[[Path, Path], Any]) -> None:
    """The weights of `version` as `folder`, with their manifest. copy: what brings a file from here to there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        if (source := _published(config, version, dtype)) is None:
            _from_checkpoint(config, version, folder, dtype)
        else:
            draft.mkdir()
            for name in weights.verify_files(source).files:
                copy(source / name, draft / name)
            shutil.copyfile(source / MANIFEST, draft / MANIFEST)
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _published(config: Config, version: int, dtype: str) -> Path | None:
    wanted = (path for path, found in _manifests(config) if (found.version, found.dtype) == (version, dtype))
    return next(wanted, None)


def _manifests(config: Config) -> Iterator[tuple[Path, Manifest]]:
    for path in weights.published(config.folder / "weights"):
        with contextlib.suppress(BadWeights):  # it is being deleted
            yield path, weights.read_manifest(path)


def _from_checkpoint(config: Config, version: int, folder: Path, dtype: str) -> None:
    supervisor, program = Supervisor(), programs.export(config, version, folder, dtype)
    process = supervisor.start(program)
    try:
        supervisor.wait_until(lambda: not process.running, program, EXPORT_S)
    finally:
        supervisor.stop()
