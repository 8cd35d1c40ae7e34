"""New weights become a folder that Transformers and SGLang load; it appears whole or not at all.

    shards of all ranks ─gather─▶ rank 0: .12-3f9a.new/ safetensors, tokenizer, manifest ─fsync, rename─▶ 12-3f9a/

The manifest holds a probe: 32 tokens of real text and the log-probs that this trainer computes for them. An engine that
has loaded the folder must compute the same.
"""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch.distributed.tensor import DTensor
from transformers import AutoTokenizer, PreTrainedModel

from pipeline.errors import HeadraceError
from pipeline.weights import MANIFEST, Manifest, write_manifest
from trainer.model import DTYPES, action_logprobs
from trainer.packing import MicroBatch
from trainer.ranks import ALONE, Ranks

PROBE_TOKENS = 32
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.index.json", "*.pt", "*.pth", MANIFEST)


class PublishError(HeadraceError):
    """Weights that cannot be written."""

    code = "PUBLISH"


def write_weights(
    model: PreTrainedModel, folder: Path, version: int, base: Path, dtype: str, probe: list[int], ranks: Ranks = ALONE
) -> Manifest:
    """Write `model` to `folder`, durable on return. Every rank calls it, rank 0 writes.

    base   the folder the run started from; its tokenizer and other small files are copied
    dtype  of the written weights, "float32" or "bfloat16"
    probe  token ids, see `probe_tokens`
    """
    logprobs = probe_logprobs(model, probe)
    tensors = gather(model, DTYPES[dtype], ranks.first)
    return ranks.on_first(lambda: _write(model, tensors, folder, version, base, dtype, probe, logprobs))


def _write(model, tensors, folder: Path, version: int, base: Path, dtype: str, probe, logprobs) -> Manifest:
    draft = folder.with_name(f".{folder.name}.new")
    draft.mkdir(parents=True)
    try:
        model.save_pretrained(draft, state_dict=tensors)
    except SafetensorError as error:
        raise PublishError(
            f"weights {folder} cannot be written ({error}): make room for them, then start the run again; it goes on "
            "from its newest checkpoint"
        ) from None
    for path in base.iterdir():
        if path.is_file() and not any(map(path.match, WEIGHT_FILES)) and not (draft / path.name).exists():
            shutil.copyfile(path, draft / path.name)
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n")
    for path in draft.iterdir():
        path.chmod(0o644)  # safetensors makes its files private; engines may run as another user
    manifest = write_manifest(draft, version, probe, logprobs, dtype)
    sync(draft)
    draft.rename(folder)
    sync(folder.parent)
    return manifest


def gather(model: PreTrainedModel, dtype: torch.dtype, first: bool = True) -> dict[str, torch.Tensor]:
    """The whole state on rank 0's CPU, tied weights once; empty on other ranks, which must call it too."""
    once = {name for name, _ in model.named_parameters()}
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - once
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name in tied:
            continue
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if first:
            tensors[name] = whole.to("cpu", dtype if whole.is_floating_point() else None, copy=True).contiguous()
    return tensors


def probe_tokens(base: Path, text: str) -> list[int]:
    """32 tokens of `text`, repeated if it is short. Log-probs of plausible text expose any change of the weights."""
    ids = AutoTokenizer.from_pretrained(base, local_files_only=True).encode(text, add_special_tokens=False)
    return (ids * (PROBE_TOKENS // len(ids) + 1))[:PROBE_TOKENS]


@torch.no_grad()
def probe_logprobs(model: PreTrainedModel, tokens: list[int]) -> list[float]:
    """[31] nats, of tokens[1:], each given those before it, at temperature 1."""
    ids = torch.tensor([tokens])
    places = torch.arange(len(tokens))
    batch = MicroBatch(ids, places[None], places[:-1], ids[0, 1:], torch.zeros(len(tokens) - 1), [0], [len(tokens) - 1])
    return action_logprobs(model, batch.to(model.device))[0].tolist()


def remove_drafts(folder: Path) -> None:
    """Delete what trainers that were killed while they wrote left in `folder`; drafts are named `.NAME.new`."""
    for draft in folder.glob(".*.new"):
        shutil.rmtree(draft)


def sync(folder: Path) -> None:
    """Force a folder's own entries (names of files, renames) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
