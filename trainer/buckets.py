"""Published tensors as an engine takes them: many in one message, in the order in which they lie in their files.

model-00001-of-00002.safetensors   a a a b b b b c │ d d d d e │ …     one range of a file, as it lies there
                                   names, dtypes, shapes         ─▶ {"names": […], "dtypes": […], "shapes": […]}
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from pipeline import tensor_file
from pipeline.tensor_file import Entry
from pipeline.weights import BadWeights, Label, published, read_manifest
from trainer.weight_files import DTYPES

NAMES = {word: str(dtype).removeprefix("torch.") for dtype, word in DTYPES.items()}


class Bucket(NamedTuple):
    """Tensors of one dtype that lie side by side in `file`, from byte `start`."""

    file: Path
    start: int
    entries: list[Entry]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    def described(self) -> dict[str, list]:
        return {
            "names": [entry.name for entry in self.entries],
            "dtypes": [NAMES[entry.dtype] for entry in self.entries],
            "shapes": [list(entry.shape) for entry in self.entries],
        }

    def mapped(self) -> torch.Tensor:
        """[bytes] uint8, all of it, in the file's own pages: nothing is copied or held."""
        end = self.start + self.bytes
        return torch.from_file(str(self.file), shared=False, size=end, dtype=torch.uint8)[self.start :]


def buckets(folder: Path, limit: int, known: Mapping[str, str] | None = None) -> list[Bucket]:
    """The weights in `folder`, at most `limit` bytes in each bucket that has more than one tensor.

    known  name -> fingerprint of tensors that need not be sent again; if that is all of them, one is
    """
    marks, found, smallest = read_manifest(folder).tensors if known else {}, [], None
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            entries, start = tensor_file.entries(file), file.tell()
        for entry in entries:
            if smallest is None or entry.bytes < smallest.bytes:
                smallest = Bucket(path, start, [entry])
            if entry.name in marks and known.get(entry.name) == marks[entry.name]:
                pass
            elif found and _continues(found[-1], path, start, entry, limit):
                found[-1].entries.append(entry)
            else:
                found.append(Bucket(path, start, [entry]))
            start += entry.bytes
    if smallest is None:
        raise FileNotFoundError(f"{folder}: expected *.safetensors, found none")
    return found or [smallest]


def tensors_of(run: Path, label: Label | None) -> Mapping[str, str]:
    """name -> fingerprint of what an engine with this label serves; empty if its weights are no longer in the folder
    of the run, or are not known by their fingerprints."""
    for folder in published(run / "weights") if label else ():
        with contextlib.suppress(BadWeights):  # it is being deleted
            if (manifest := read_manifest(folder)).label(label.run) == label:
                return manifest.tensors
    return {}


def _continues(bucket: Bucket, path: Path, start: int, entry: Entry, limit: int) -> bool:
    """Whether the tensor at `start` is the next of a bucket; SGLang wants all of them to be aligned to their dtype."""
    adjacent = bucket.file == path and bucket.start + bucket.bytes == start
    return adjacent and bucket.entries[0].dtype == entry.dtype and bucket.bytes + entry.bytes <= limit
