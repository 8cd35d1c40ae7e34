"""Checkpoints: from one of these the run goes on exactly as if it had never stopped.

    checkpoints/30/   *.distcp  model and optimizer, each rank its shard (torch.distributed.checkpoint)
                      state.json  version, the entries of the last batches, probe tokens

A checkpoint of version v contains updates 0 .. v-1. It is written under another name, forced to the disk and renamed:
what has the name is whole. Two are kept.
"""

import json
import os
import shutil
import uuid
import warnings
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from pipeline.errors import HeadraceError
from trainer.publish import sync
from trainer.ranks import Ranks

STATE = "state.json"
KEPT = 2


class CheckpointError(HeadraceError):
    """A checkpoint that cannot be written or read."""

    code = "CHECKPOINT"


def newest(folder: Path) -> Path | None:
    """The checkpoint with the highest version in `folder`; drafts of a killed trainer do not count."""
    found = [p for p in folder.iterdir() if p.name.isdecimal() and (p / STATE).is_file()] if folder.is_dir() else []
    return max(found, key=lambda path: int(path.name), default=None)


def read_state(path: Path) -> dict[str, Any]:
    return json.loads((path / STATE).read_text())


def save(folder: Path, version: int, model, optimizer, state: dict[str, Any], ranks: Ranks) -> None:
    """Write checkpoints/{version}, durable on return, and delete all but the newest two. Every rank calls it."""
    final = folder / str(version)

    def begin() -> Path | None:
        if (final / STATE).is_file():
            return None
        # a name of its own: another trainer, not fenced yet, may be writing the same version
        draft = folder / f".{version}-{uuid.uuid4().hex[:8]}.new"
        draft.mkdir(parents=True)
        return draft

    def finish() -> None:
        (draft / STATE).write_text(json.dumps(state))
        for path in draft.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync(draft)
        draft.rename(final)
        sync(folder)
        for version in sorted(int(p.name) for p in folder.iterdir() if p.name.isdecimal())[:-KEPT]:
            shutil.rmtree(folder / str(version))

    # What one rank sees on its disk must not decide whether it joins the others' collectives.
    draft = ranks.on_first(begin)
    if draft is None:
        return
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="torch")
            dcp.save(_tensors(model, optimizer), checkpoint_id=draft)
    except CheckpointException as error:
        raise CheckpointError(
            f"checkpoint {final} cannot be written ({_reason(error)}): make room for it, then start the run again; "
            "it goes on from the checkpoint before"
        ) from None
    ranks.on_first(finish)


def load(path: Path, model, optimizer) -> None:
    """Fill model and optimizer from a checkpoint; the number of ranks may differ from the one that wrote it."""
    tensors = _tensors(model, optimizer)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="torch")
            dcp.load(tensors, checkpoint_id=path)
    except (Exception, CheckpointException) as error:  # each storage reader raises its own kinds
        raise CheckpointError(
            f"checkpoint {path} cannot be read ({_reason(error)}); "
            "move that folder away and the run resumes from the one before it"
        ) from error
    set_state_dict(model, optimizer, model_state_dict=tensors["model"], optim_state_dict=tensors["optimizer"])


def _tensors(model, optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def _reason(error: BaseException) -> str:
    """One line; of several ranks' errors the first."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
