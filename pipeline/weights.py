"""Published weights: a folder that Transformers and SGLang can load, and a manifest that says exactly what is in it.

    weights/12-3f9a/   config.json  model-00001-of-00004.safetensors …  tokenizer.json …
                       manifest.json  version, dtype, sha256 of every file, fingerprint of every tensor,
                                      32 probe tokens and their log-probs, digest

The digest covers the whole manifest. An engine is given the label `run:version:digest16` with the weights and echoes it
on every reply; since it would echo anything, the probe's log-probs show that it really computes with these weights.
Before that, the files are checked: of weights the fingerprints, which takes a tenth of the time of sha256.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pipeline import tensor_file
from pipeline.errors import HeadraceError

MANIFEST = "manifest.json"
FOLDER = re.compile(r"(\d+)(-.*)?")  # {version} or {version}-{incarnation of the trainer}
READERS = 4  # files that are checked at a time


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


class TensorFile(NamedTuple):
    """What is known of a file that was hashed while it was written; tensors: name -> fingerprint."""

    sha256: str
    tensors: dict[str, str]


@dataclass(frozen=True)
class Manifest:
    """files: name -> sha256; tensors: name -> fingerprint, empty in folders that others wrote.
    probe_logprobs: [n - 1] nats, of probe_tokens[1:], each given the tokens before it."""

    version: int
    dtype: str
    files: dict[str, str]
    probe_tokens: tuple[int, ...]
    probe_logprobs: tuple[float, ...]
    tensors: dict[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self._contents(), sort_keys=True).encode()).hexdigest()

    def label(self, run: str) -> Label:
        return Label(run, self.version, self.digest[:16])

    def _contents(self) -> dict:
        probe = {"tokens": list(self.probe_tokens), "logprobs": list(self.probe_logprobs)}
        contents = {"version": self.version, "dtype": self.dtype, "files": self.files, "probe": probe}
        return contents | ({"tensors": self.tensors} if self.tensors else {})


def write_manifest(
    folder: Path,
    version: int,
    probe_tokens: Sequence[int],
    probe_logprobs: Sequence[float],
    dtype: str,
    written: Mapping[str, TensorFile] | None = None,
) -> Manifest:
    """Describe the files that lie in `folder` now, all on the disk; the manifest comes last, at once.

    written  those that are on the disk and hashed already; the others are forced to the disk, and hashed
    """
    written = written or {}
    if len(probe_logprobs) != len(probe_tokens) - 1:
        raise BadWeights(
            f"probe: expected one log-prob for each of the {len(probe_tokens)} tokens but the first, "
            f"found {len(probe_logprobs)}"
        )
    paths = [path for path in sorted(folder.iterdir()) if path.name != MANIFEST]
    files = {p.name: written[p.name].sha256 if p.name in written else _sha256(p, sync=True) for p in paths}
    tensors = {name: mark for file in written.values() for name, mark in file.tensors.items()}
    tokens, logprobs = tuple(int(t) for t in probe_tokens), tuple(float(p) for p in probe_logprobs)
    return _write(folder, Manifest(version, dtype, files, tokens, logprobs, tensors))


def renumber(folder: Path, version: int) -> Manifest:
    """The same weights, as those of another version."""
    return _write(folder, replace(read_manifest(folder), version=version))


def _write(folder: Path, manifest: Manifest) -> Manifest:
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
        tokens, logprobs = tuple(probe["tokens"]), tuple(probe["logprobs"])
        tensors = found.get("tensors", {})
        manifest = Manifest(found["version"], found["dtype"], found["files"], tokens, logprobs, tensors)
        digest = found["digest"]
    except OSError as error:
        raise BadWeights(f"{path}: expected the manifest of published weights, found: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadWeights(f"{path}: not a manifest of published weights: {error!r}") from None
    if manifest.digest != digest:
        raise BadWeights(f"{path}: its digest is {manifest.digest[:16]}…, but it says {digest!s:.16}…: it was changed")
    return manifest


def verify_files(folder: Path) -> Manifest:
    """The manifest of `folder`, after every file was compared with it. Raises BadWeights that names the file.

    A file whose tensors the manifest has fingerprints of is compared by these, any other by its sha256.
    """
    manifest = read_manifest(folder)

    def tensors_of(name: str) -> set[str]:
        path = folder / name
        if not path.is_file():
            raise BadWeights(f"{path}: missing; the manifest lists it")
        if manifest.tensors and path.suffix == ".safetensors":
            return _tensors(path, manifest.tensors)
        if _sha256(path) != manifest.files[name]:
            raise BadWeights(f"{path}: its contents are not those that were published; copy the folder anew")
        return set()

    with ThreadPoolExecutor(READERS) as pool:
        found = set().union(*pool.map(tensors_of, manifest.files))
    if missing := manifest.tensors.keys() - found:
        raise BadWeights(f"{folder}: {min(missing)} is in none of its files; copy the folder anew")
    return manifest


def _tensors(path: Path, published: Mapping[str, str]) -> set[str]:
    """The names of the tensors in the file, which are as they were published."""
    try:
        found = tensor_file.fingerprints(path)
    except (ValueError, KeyError, TypeError) as error:
        raise BadWeights(f"{path}: not a whole file of tensors ({error}); copy the folder anew") from None
    for name, mark in found.items():
        if published.get(name) != mark:
            raise BadWeights(f"{path}: {name} is not what was published; copy the folder anew")
    return found.keys()


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
