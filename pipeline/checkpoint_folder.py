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

import contextlib
import errno
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pipeline import jsonl
from pipeline.errors import HeadraceError

STATE, PROMPTS, PREVIOUS = "state.json", "prompts.jsonl", "previous.bin"
DAMAGED = ".damaged"


class DamagedCheckpoint(HeadraceError):
    """A checkpoint whose files are not those that were written."""

    code = "DAMAGED"


class UnreadableCheckpoint(HeadraceError):
    """A checkpoint that may be whole, and that this process cannot read."""

    code = "CHECKPOINT"


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
    """Raises DamagedCheckpoint or UnreadableCheckpoint."""
    try:
        with _reading(path / STATE):
            state = json.loads((path / STATE).read_bytes())
        if isinstance(state, dict) and "digest" not in state:  # what is torn is no JSON
            raise UnreadableCheckpoint(
                f"{path} was written by another headrace, which noted no digests in it: this one cannot tell whether "
                "it is whole, and leaves it as it is. Go on with that headrace; or have that one export it, and begin "
                "a new run with it as model.path"
            )
        digest = state.pop("digest")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{path / STATE} cannot be read ({type(error).__name__}: {error})") from None
    if digest != _digest_of(state):
        raise DamagedCheckpoint(f"{path / STATE} is not what was written")
    return state


def verify(path: Path, names: Iterable[str]) -> None:
    """Those of its files have the digests that were written down. Raises DamagedCheckpoint, which names the file, or
    UnreadableCheckpoint."""
    files = read_state(path)["files"]
    for name in names:
        with _reading(path / name):
            digest = digest_of(path / name)
        if digest != files[name]:
            raise DamagedCheckpoint(f"{path / name} is not what was written")


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """That it is not there, or not on the disk any more, is damage; that it may not be read says nothing of it."""
    try:
        yield
    except FileNotFoundError:
        raise DamagedCheckpoint(f"{file} is missing") from None
    except OSError as error:
        if error.errno == errno.EIO:
            raise DamagedCheckpoint(f"{file} cannot be read ({error.strerror})") from None
        raise UnreadableCheckpoint(
            f"{file} cannot be read ({error.strerror}): let the user of this process read it, then start again"
        ) from None


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
