"""New weights become a folder that Transformers and SGLang load; it appears whole or not at all.

    shards of all ranks ─ pieces ─▶ rank 0: .12-3f9a.new/model-00001-of-00003.safetensors ┐
                                    rank 1:              model-00002-of-00003.safetensors ├ fsync, manifest, rename
                                    rank 0:              …, tokenizer, manifest           ┘ ─▶ 12-3f9a/

No rank holds more than publish.bucket_mb beyond its shard: pieces go to their file as they are gathered, and each
file is hashed, written and forced to the disk by a thread of its own while the next one is gathered. Only what
save_pretrained would cut up (experts that are trained as one tensor) is held whole, one tensor at a time. The training
loop stands still meanwhile: to go on, it would need a copy of whatever is not gathered yet.

The manifest holds a probe: 32 tokens of real text and the log-probs that this trainer computes for them. An engine that
has loaded the folder must compute the same.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import AutoTokenizer, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from pipeline.config import Publish
from pipeline.errors import HeadraceError
from pipeline.weights import MANIFEST, Manifest, TensorFile, write_manifest
from trainer import weight_files
from trainer.delta import Delta
from trainer.disk import sync
from trainer.gather import pieces
from trainer.model import DTYPES, action_logprobs
from trainer.packing import MicroBatch
from trainer.ranks import ALONE, Ranks
from trainer.tensor_writer import Writer
from trainer.weight_files import Source

PROBE_TOKENS = 32
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.index.json", "*.pt", "*.pth", MANIFEST)
MIB = 1 << 20


class PublishError(HeadraceError):
    """Weights that cannot be written."""

    code = "PUBLISH"


class Written(NamedTuple):
    manifest: Manifest
    bytes: int  # of tensors that were written; what is linked to the version before is not


def write_weights(
    model: PreTrainedModel,
    folder: Path,
    version: int,
    base: Path,
    dtype: str,
    probe: list[int],
    ranks: Ranks = ALONE,
    bucket_mb: int = Publish().bucket_mb,
    delta: Delta | None = None,
) -> Written:
    """Write `model` to `folder`, durable on return. Every rank calls it, and each writes files of its own.

    base   the folder the run started from; its tokenizer and other small files are copied
    dtype  of the written weights, "float32" or "bfloat16"
    probe  token ids, see `probe_tokens`
    delta  what the publication before was; files whose tensors are the same are linked to its
    """
    bucket = bucket_mb * MIB
    tensors = model.state_dict()
    files = weight_files.files(weight_files.sources(model, tensors, DTYPES[dtype]), bucket // 2, delta is not None)
    draft = folder.with_name(f".{folder.name}.new")

    def begin() -> dict[str, TensorFile]:
        shutil.rmtree(draft, ignore_errors=True)  # of one that was killed
        draft.mkdir(parents=True)
        _write_settings(model, draft, base, dtype)
        if len(files) > 1:
            (draft / weight_files.INDEX).write_text(json.dumps(weight_files.index(files), indent=1) + "\n")
        return delta.link(draft, files, changed) if delta else {}

    def finish() -> Manifest:
        for path in draft.iterdir():
            path.chmod(0o644)  # whatever this process's umask is; engines may run as another user
        manifest = write_manifest(draft, version, probe, logprobs, dtype, written)
        sync(draft)
        draft.rename(folder)
        sync(folder.parent)
        return manifest

    changed = delta.changed(tensors, files, ranks) if delta else set()
    linked = ranks.on_first(lambda: _told(folder, begin))
    new = {name: group for name, group in files.items() if name not in linked}
    writer = _gather(model, tensors, new, draft, ranks, bucket)
    logprobs = probe_logprobs(model, probe)  # while the last files reach the disk
    own = ranks.on_each(lambda: _told(folder, writer.finish))
    written = linked | {name: file for part in ranks.gather(own) for name, file in part.items()}
    manifest = ranks.on_first(lambda: _told(folder, finish))
    if delta:
        delta.published(folder, manifest)
    return Written(manifest, sum(source.bytes for group in new.values() for source in group))


def _gather(
    model: PreTrainedModel,
    tensors: Mapping[str, torch.Tensor],
    files: Mapping[str, list[Source]],
    draft: Path,
    ranks: Ranks,
    bucket: int,
) -> Writer:
    """Bring every tensor to the rank that writes its file, one after another. A piece has a quarter of the bucket, and
    three are on their way to the disk at most."""
    writer = Writer(3 * bucket // 4)
    for number, (name, group) in enumerate(files.items()):
        here = number % ranks.size == ranks.rank
        if here:
            writer.begin(draft / name, [entry for source in group for entry in source.entries])
        for source in group:
            gathered = pieces(tensors[source.name], source.dtype, ranks.device, bucket // 4)
            if here and source.converted:
                whole = torch.cat([piece.cpu() for piece in gathered])
                converted = revert_weight_conversion(model, {source.name: whole})
                for entry in source.entries:
                    writer.put(entry, converted[entry.name].contiguous())
                continue
            for piece in gathered:
                if here:
                    writer.put(source.entries[0], piece)
    writer.end()
    return writer


def _write_settings(model: PreTrainedModel, draft: Path, base: Path, dtype: str) -> None:
    """Whatever the folder has besides weights."""
    model.config.architectures = [type(model).__name__.removeprefix("FSDP")]
    model.config.save_pretrained(draft)
    if model.can_generate():
        model.generation_config.save_pretrained(draft)
    for path in base.iterdir():
        if path.is_file() and not any(map(path.match, WEIGHT_FILES)) and not (draft / path.name).exists():
            shutil.copyfile(path, draft / path.name)
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n")


def _told(folder: Path, call):
    """`call`; what the disk refuses is told with the way out."""
    try:
        return call()
    except OSError as error:
        raise PublishError(
            f"weights {folder} cannot be written ({error}): make room for them, then start the run again; it goes on "
            "from its newest checkpoint"
        ) from None


def probe_tokens(base: Path, text: str) -> list[int]:
    """32 tokens of `text`, repeated if it is short. Log-probs of plausible text expose any change of the weights."""
    ids = AutoTokenizer.from_pretrained(base, local_files_only=True).encode(text, add_special_tokens=False)
    return (ids * (PROBE_TOKENS // len(ids) + 1))[:PROBE_TOKENS]


@torch.no_grad()
def probe_logprobs(model: PreTrainedModel, tokens: list[int]) -> list[float]:
    """[31] nats, of tokens[1:], each given those before it, at temperature 1."""
    ids = torch.tensor([tokens])
    places = torch.arange(len(tokens))
    given, count = torch.zeros(len(tokens) - 1), len(tokens)
    batch = MicroBatch(ids, places[None], places[:-1], ids[0, 1:], given, [0], [count - 1], [count])
    logprobs = action_logprobs(model, batch.to(model.device))[0].tolist()
    if isinstance(model, FSDPModule):
        model.reshard()  # after a forward pass alone its outermost tensors are whole
    return logprobs
