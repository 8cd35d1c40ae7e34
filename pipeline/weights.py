"""Published weights: a folder that Transformers and SGLang can load, and a manifest that says exactly what is in it.

    weights/12-3f9a/   config.json  model.safetensors  tokenizer.json …
                       manifest.json  version, dtype, sha256 of every file, 32 probe tokens and their log-probs, digest

The digest covers the whole manifest. An engine is given the label `run:version:digest16` with the weights and echoes it
on every reply; since it would echo anything, the probe's log-probs show that it really computes with these weights.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import HeadraceError

MANIFEST = "manifest.json"
FOLDER = re.compile(r"(\d+)(-.*)?")  # {version} or {version}-{incarnation of the trainer}


class BadWeights(HeadraceError, ValueError):
    """A folder of weights that is missing, incomplete or changed since it was published."""

    code = "WEIGHTS"


class Label(NamedTuple):
    """What an engine is told to call its weights; digest: the first 16 hex digits of the manifest's."""

    run: str
    version: int
    digest: str

    def __str__(self) -> str:
        return f"{self.run}:{self.version}:{self.digest}"

    @classmethod
    @lru_cache(maxsize=64)  # every reply carries one, mostly the same
    def parse(cls, text: str | None) -> "Label | None":
        """None for a label that is not of published weights, such as that of a server which was just started."""
        found = re.fullmatch(r"([^:]+):(\d+):([0-9a-f]{16})", text or "")
        return cls(found[1], int(found[2]), found[3]) if found else None


@dataclass(frozen=True)
class Manifest:
    """files: name -> sha256; probe_logprobs: [n - 1] nats, of probe_tokens[1:], each given the tokens before it."""

    version: int
    dtype: str
    files: dict[str, str]
    probe_tokens: tuple[int, ...]
    probe_logprobs: tuple[float, ...]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self._contents(), sort_keys=True).encode()).hexdigest()

    def label(self, run: str) -> Label:
        return Label(run, self.version, self.digest[:16])

    def _contents(self) -> dict:
        probe = {"tokens": list(self.probe_tokens), "logprobs": list(self.probe_logprobs)}
        return {"version": self.version, "dtype": self.dtype, "files": self.files, "probe": probe}


def write_manifest(
    folder: Path, version: int, probe_tokens: Sequence[int], probe_logprobs: Sequence[float], dtype: str
) -> Manifest:
    """Describe the files that lie in `folder` now, after forcing them to the disk; the manifest comes last, at once."""
    if len(probe_logprobs) != len(probe_tokens) - 1:
        raise BadWeights(
            f"probe: expected one log-prob for each of the {len(probe_tokens)} tokens but the first, "
            f"found {len(probe_logprobs)}"
        )
    files = {path.name: _sha256(path, sync=True) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    tokens, logprobs = tuple(int(t) for t in probe_tokens), tuple(float(p) for p in probe_logprobs)
    manifest = Manifest(version, dtype, files, tokens, logprobs)
    draft = folder / f"{MANIFEST}.new"
    with draft.open("w") as file:
        json.dump(manifest._contents() | {"digest": manifest.digest}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(folder / MANIFEST)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of `folder`; its files are not looked at. Raises BadWeights."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text())
        probe = found["probe"]
        manifest = Manifest(
            found["version"], found["dtype"], found["files"], tuple(probe["tokens"]), tuple(probe["logprobs"])
        )
        digest = found["digest"]
    except OSError as error:
        raise BadWeights(f"{path}: expected the manifest of published weights, found: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadWeights(f"{path}: not a manifest of published weights: {error!r}") from None
    if manifest.digest != digest:
        raise BadWeights(f"{path}: its digest is {manifest.digest[:16]}…, but it says {digest!s:.16}…: it was changed")
    return manifest


def verify_files(folder: Path) -> Manifest:
    """The manifest of `folder`, after the digest of every file was compared. Raises BadWeights that names the file."""
    manifest = read_manifest(folder)
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise BadWeights(f"{path}: missing; the manifest lists it")
        if _sha256(path) != expected:
            raise BadWeights(f"{path}: its contents are not those that were published; copy the folder anew")
    return manifest


def published(folder: Path) -> list[Path]:
    """The weights in `folder` that are complete, in the order of their versions; drafts are not."""
    return [path for _, path in _versions(folder) if (path / MANIFEST).is_file()]


def retain(folder: Path, keep: Iterable[int]) -> list[Path]:
    """Delete the weights in `folder` of versions not in `keep`; returns what was deleted.

    Those newer than all of `keep` stay: the trainer has written them and is about to publish.
    """
    keep, deleted = set(keep), []
    for version, path in _versions(folder):
        if version not in keep and version < max(keep, default=0):
            (path / MANIFEST).unlink(missing_ok=True)  # first: what is half deleted must not look whole
            shutil.rmtree(path)
            deleted.append(path)
    return deleted


def _versions(folder: Path) -> list[tuple[int, Path]]:
    found = ((FOLDER.fullmatch(path.name), path) for path in (folder.iterdir() if folder.is_dir() else ()))
    return sorted((int(name[1]), path) for name, path in found if name and path.is_dir())


def _sha256(path: Path, sync: bool = False) -> str:
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
