"""Which tensors a published model has, by the names that Transformers and SGLang expect, and in which files they lie.

    model.layers.0.mlp.experts.gate_up_proj ─ as save_pretrained would ─▶ ….experts.0.gate_proj.weight, and so on
    Source, Source │ Source, Source, Source │ … ─▶ model-00001-of-00003.safetensors, …; model.safetensors if one

All of it is found out from names and shapes, before a single tensor is gathered.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from pipeline.errors import HeadraceError
from pipeline.tensor_file import Entry

INDEX = "model.safetensors.index.json"
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
LAYER = re.compile(r".*?\.\d+\.")


class ConversionError(HeadraceError):
    """A model whose weights are saved otherwise than they are trained, in a way that needs all of them at once."""

    code = "CONVERSION"


class Source(NamedTuple):
    """A tensor of the model, and what it is in the published file: mostly the same."""

    name: str
    dtype: torch.dtype  # as it is published
    entries: tuple[Entry, ...]
    converted: bool

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)


def sources(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> list[Source]:
    """tensors: the model's state. Tied ones come once. Raises ConversionError."""
    once = {name for name, _ in model.named_parameters()}
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - once
    left_out = tied | set(model._keys_to_ignore_on_save or ())
    shapes = {
        name: torch.empty(tensor.shape, dtype=dtype if tensor.is_floating_point() else tensor.dtype, device="meta")
        for name, tensor in tensors.items()
        if name not in left_out
    }
    found = []
    for name, shape in shapes.items():
        saved = revert_weight_conversion(model, {name: shape})
        entries = tuple(Entry(saved_as, DTYPES[t.dtype], tuple(t.shape)) for saved_as, t in saved.items())
        converted = len(entries) != 1 or entries[0].shape != tuple(shape.shape)
        found.append(Source(name, shape.dtype, entries, converted))
    together = {name: tuple(t.shape) for name, t in revert_weight_conversion(model, shapes).items()}
    alone = {entry.name: entry.shape for source in found for entry in source.entries}
    if alone != together:
        different = min(name for name, _ in alone.items() ^ together.items())
        raise ConversionError(
            f"{type(model).__name__}: {different} is saved as a mixture of several of the model's tensors, which "
            "publications do not make; train another model, or one that transformers loads without conversion"
        )
    return found


def files(found: Iterable[Source], limit: int, by_layer: bool) -> dict[str, list[Source]]:
    """name -> what lies in it, in order; at most `limit` bytes each, but for a tensor that alone has more.

    by_layer  two layers share no file, so that one which has not changed leaves its files as they were
    """
    groups = list(_groups(found, limit, by_layer))
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{i:05}-of-{len(groups):05}.safetensors": group for i, group in enumerate(groups, 1)}


def index(files: Mapping[str, list[Source]]) -> dict:
    """What the folder's INDEX says of them."""
    where = {entry.name: file for file, group in files.items() for source in group for entry in source.entries}
    size = sum(source.bytes for group in files.values() for source in group)
    return {"metadata": {"total_size": size}, "weight_map": where}


def _groups(found: Iterable[Source], limit: int, by_layer: bool) -> Iterator[list[Source]]:
    group: list[Source] = []
    for source in found:
        full = group and sum(s.bytes for s in group) + source.bytes > limit
        if full or (group and by_layer and _layer(group[-1]) != _layer(source)):
            yield group
            group = []
        group.append(source)
    yield group


def _layer(source: Source) -> str:
    found = LAYER.match(source.name)
    return found[0] if found else ""
