"""A run's checkpoints on the disk, for whoever reads them without torch.

    checkpoints/20/           one cut: all that the run is, when updates 0 .. 19 are made and no more
                │ *.distcp      model, optimizer and reference, each rank its shard: trainer/checkpoint.py
                │ prompts.jsonl each prompt's evidence and visits, as the ledger had them: all that its race depends on
                │ previous.bin  each prompt's last trajectory, with advantage.evidence = "receipt"
                └ state.json    version, event, the entries of the last batches, probe tokens, credits, parts;
                                files: the sha256 of all the others; digest: of itself
    checkpoints/30.damaged/   is not what was written, and kept for whoever wants to know why

Where in Redis it stands is its version: the next batch is that of buffer `version`, whatever else Redis has become.
"""

import errno
import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline import jsonl
from pipeline.errors import HeadraceError

STATE, PROMPTS, PREVIOUS = "state.json", "prompts.jsonl", "previous.bin"
DAMAGED = ".damaged"


class DamagedCheckpoint(HeadraceError):
    """A checkpoint whose files are not those that were written."""

    code = "DAMAGED"


def all_of(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, the newest first; drafts of a killed trainer, and damaged ones, do not count."""
    numbered = [path for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []
    return sorted(numbered, key=lambda path: -int(path.name))


def newest(folder: Path) -> Path | None:
    return next(iter(all_of(folder)), None)


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """state: with its `files`."""
    (folder / STATE).write_text(json.dumps(state | {"digest": _digest_of(state)}))


def read_state(path: Path) -> dict[str, Any]:
    """Raises DamagedCheckpoint."""
    try:
        state = json.loads((path / STATE).read_bytes())
        digest = state.pop("digest")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{path / STATE} cannot be read ({type(error).__name__}: {error})") from None
    if digest != _digest_of(state):
        raise DamagedCheckpoint(f"{path / STATE} is not what was written")
    return state


def verify(path: Path, names: Iterable[str]) -> None:
    """Those of its files have the digests that were written down. Raises DamagedCheckpoint, which names the file."""
    files = read_state(path)["files"]
    for name in names:
        if not (path / name).is_file():
            raise DamagedCheckpoint(f"{path / name} is missing")
        try:
            digest = digest_of(path / name)
        except OSError as error:
            if error.errno != errno.EIO:  # else the disk is there, and has lost it
                raise
            raise DamagedCheckpoint(f"{path / name} cannot be read ({error.strerror})") from None
        if digest != files[name]:
            raise DamagedCheckpoint(f"{path / name} is not what was written")


def read_prompts(folder: Path) -> dict[str, dict[str, Any]]:
    """What `Coordinator.add_prompts` takes of each prompt, by id, from the newest checkpoint in `folder` that says it;
    {} if there is none."""
    for path in all_of(folder):
        try:
            verify(path, [PROMPTS])
        except DamagedCheckpoint:
            continue  # the trainer finds it too, and says so
        return {prompt["id"]: prompt for prompt in jsonl.read(path / PROMPTS)}
    return {}


def set_aside(path: Path) -> Path:
    """Out of the way of the trainer, which will make checkpoint `path` again."""
    aside = path.with_name(path.name + DAMAGED)
    shutil.rmtree(aside, ignore_errors=True)
    return path.rename(aside)


def retain(folder: Path, kept: int) -> None:
    """Delete all but the newest `kept`; and a damaged one when as many newer ones are there."""
    versions = sorted(int(path.name) for path in all_of(folder))
    for version in versions[:-kept]:
        (folder / str(version) / STATE).unlink(missing_ok=True)  # first: what is half deleted must not look whole
        shutil.rmtree(folder / str(version))
    for path in folder.glob(f"*{DAMAGED}"):
        if len(versions) >= kept and int(path.name.removesuffix(DAMAGED)) < versions[-kept]:
            shutil.rmtree(path)


def digest_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _digest_of(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
