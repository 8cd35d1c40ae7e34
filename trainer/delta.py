"""publish.delta: what has not changed since the publication before is not written again.

    each rank: XXH3 of its part of every tensor, as it would be published ─ the same as last time, on every rank? ─▶
        a file with such tensors alone ─▶ a hard link to the former version's; the folder is whole all the same

It helps where layers are frozen; an update of all parameters changes nearly every tensor, however small its steps.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
import xxhash

from pipeline.weights import Manifest, TensorFile
from trainer.ranks import Ranks, own_part
from trainer.weight_files import Source

PIECE = 4 << 20  # elements that are converted and hashed at a time


class Delta:
    """Kept by every rank, from one publication of this process to the next; the first one is whole."""

    def __init__(self):
        self._marks: dict[str, str] = {}
        self._former: tuple[Path, Manifest] | None = None

    def changed(self, tensors: Mapping[str, torch.Tensor], files: Mapping[str, list[Source]], ranks: Ranks) -> set[str]:
        """The names of the model's tensors that differ from last time on any rank."""
        marks = {source.name: _mark(tensors[source.name], source.dtype) for group in files.values() for source in group}
        own = {name for name, mark in marks.items() if self._marks.get(name) != mark}
        self._marks = marks
        return set().union(*ranks.gather(own))

    def link(self, draft: Path, files: Mapping[str, list[Source]], changed: Iterable[str]) -> dict[str, TensorFile]:
        """Rank 0: make those files in `draft` that are as they were, and say what is known of them."""
        if self._former is None:
            return {}
        folder, manifest = self._former
        linked = {}
        for name, group in files.items():
            if not any(source.name in changed for source in group) and (folder / name).is_file():
                os.link(folder / name, draft / name)
                marks = {entry.name: manifest.tensors[entry.name] for source in group for entry in source.entries}
                linked[name] = TensorFile(manifest.files[name], marks)
        return linked

    def published(self, folder: Path, manifest: Manifest) -> None:
        self._former = folder, manifest


@torch.no_grad()
def _mark(tensor: torch.Tensor, dtype: torch.dtype) -> str:
    own = own_part(tensor).reshape(-1)
    mark = xxhash.xxh3_128()
    for piece in own.split(PIECE):
        mark.update(memoryview(piece.to("cpu", dtype).view(torch.uint8).numpy()))
    return mark.hexdigest()
