"""The weights that a run starts from: each rank reads its own rows of them, and no rank ever has the whole.

    weights/0/*.safetensors  ──slice by slice, to float32──▶  rank 0: rows 0-3     rank 1: rows 4-7

A folder whose names are not those of the model's own parameters (transformers renames, joins or splits them while it
loads) is read whole by rank 0, which passes each rank its part.
"""

import logging
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import PreTrainedModel

from trainer.model import ModelError, load
from trainer.ranks import Ranks

log = logging.getLogger(__name__)


def fill(model: PreTrainedModel, folder: Path, ranks: Ranks) -> None:
    """Fill a model that sharding.py made. Every rank calls it. Raises ModelError, with names, for weights that are
    missing, that the model has no place for, or that have another shape."""
    once = {name for name, _ in model.named_parameters()}
    again = {name for name, _ in model.named_parameters(remove_duplicate=False)} - once
    wanted = {name: tensor for name, tensor in model.state_dict().items() if name not in again}
    if ranks.on_first(lambda: _has(folder, wanted, again)):
        _read(wanted, folder)
    else:
        _read_whole(model, folder, ranks)


def _has(folder: Path, wanted: dict[str, torch.Tensor], again: set[str]) -> bool:
    """Whether the folder has exactly the wanted tensors; those in `again` have another name, and are no more than
    that."""
    try:
        found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except Exception:  # a file that is cut off, or none: `load` says which
        return False
    once = all(len(tensor.chunks) == 1 for tensor in found.values())  # not in several files
    shapes = {name: tensor.size for name, tensor in found.items() if name not in again}
    return once and shapes == {name: tensor.size() for name, tensor in wanted.items()}


def _read(wanted: dict[str, torch.Tensor], folder: Path) -> None:
    try:
        dcp.load(wanted, storage_reader=HuggingFaceStorageReader(str(folder)))
    except (Exception, CheckpointException) as error:  # of disks and of safetensors
        raise ModelError(
            f"model folder {folder} cannot be read ({type(error).__name__}); copy it again whole"
        ) from error


def _read_whole(model: PreTrainedModel, folder: Path, ranks: Ranks) -> None:
    whole: list[PreTrainedModel] = []
    ranks.on_first(lambda: whole.append(load(folder)))
    if ranks.first:
        log.warning(
            "%s names its weights otherwise than a %s model: rank 0 reads all of them", folder, model.config.model_type
        )
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=ranks.size > 1)
    set_model_state_dict(model, whole[0].state_dict() if whole else {}, options=options)
