"""Checkpoints: from one of these the run goes on exactly as if it had never stopped.

    checkpoints/30/   *.distcp  model and optimizer, each rank its shard (torch.distributed.checkpoint)
                      state.json  version, the entries of the last batches, probe tokens

    the loop   update 29 ─▶ stage ─▶ update 30 ─▶ update 31 ─▶ settle: durable on every rank, so the ledger is told
    a thread                  └─▶ write ─▶ fsync ─▶ rename ──────┘

A checkpoint of version v contains updates 0 .. v-1. It is staged, which is a copy in the CPU's memory, while the loop
stands still, and written meanwhile under another name; what has the name is whole. Two are kept.
"""

import json
import os
import shutil
import time
import uuid
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from pipeline.errors import HeadraceError
from trainer.publish import sync
from trainer.ranks import Ranks

STATE = "state.json"
KEPT = 2


class CheckpointError(HeadraceError):
    """A checkpoint that cannot be written or read."""

    code = "CHECKPOINT"


class Written(NamedTuple):
    version: int
    seconds: float  # the thread took for it, while the loop went on


def newest(folder: Path) -> Path | None:
    """The checkpoint with the highest version in `folder`; drafts of a killed trainer do not count."""
    found = [p for p in folder.iterdir() if p.name.isdecimal() and (p / STATE).is_file()] if folder.is_dir() else []
    return max(found, key=lambda path: int(path.name), default=None)


def read_state(path: Path) -> dict[str, Any]:
    return json.loads((path / STATE).read_text())


class Writer:
    """Writes checkpoints into `folder`, one at a time. Every rank has one and makes the same calls; its thread ends,
    with what it writes, when it is left as a context."""

    def __init__(self, folder: Path, ranks: Ranks):
        self._folder, self._ranks = folder, ranks
        # its own, lest the thread's messages meet those of the updates
        self._group = dist.new_group(backend="gloo")
        self._stager = DefaultStager(StagingOptions(False, False, False, False))  # into plain memory, at once
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[Written] | None = None

    def begin(self, version: int, model, optimizer, state: dict[str, Any]) -> None:
        """Stage checkpoint `version` and have it written; the one before must be settled."""
        # What one rank sees on its disk must not decide whether it joins the others' collectives.
        draft = self._ranks.on_first(lambda: self._draft(version))
        staged = self._stager.stage(_tensors(model, optimizer)) if draft else None
        self._pending = self._thread.submit(self._write, version, draft, staged, state)

    def settle(self, wait: bool) -> Written | None:
        """The checkpoint that has become durable since the last call, on all ranks or on none; wait: until it has.

        Raises CheckpointError, on all ranks, if one of them could not write it.
        """
        pending = self._pending
        if pending is None or not (wait or all(self._ranks.gather(pending.done()))):
            return None
        self._pending = None
        return self._ranks.on_each(pending.result)

    def _draft(self, version: int) -> Path | None:
        """A folder to write in; None: there is this checkpoint."""
        if (self._folder / str(version) / STATE).is_file():
            return None
        # a name of its own: another trainer, not fenced yet, may be writing the same version
        draft = self._folder / f".{version}-{uuid.uuid4().hex[:8]}.new"
        draft.mkdir(parents=True)
        return draft

    def _write(self, version: int, draft: Path | None, staged: dict[str, Any] | None, state: dict[str, Any]) -> Written:
        began = time.monotonic()
        try:
            if draft is not None:
                dcp.save(staged, checkpoint_id=draft, process_group=self._group)
                if self._ranks.first:
                    self._finish(version, draft, state)
        except (CheckpointException, OSError) as error:
            raise CheckpointError(
                f"checkpoint {self._folder / str(version)} cannot be written ({_reason(error)}): make room for it, "
                "then start the run again; it goes on from the checkpoint before"
            ) from None
        return Written(version, time.monotonic() - began)

    def _finish(self, version: int, draft: Path, state: dict[str, Any]) -> None:
        """All ranks have written their shards: the checkpoint gets its name, and all but the newest two go."""
        (draft / STATE).write_text(json.dumps(state))
        for path in draft.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync(draft)
        draft.rename(self._folder / str(version))
        sync(self._folder)
        for old in sorted(int(p.name) for p in self._folder.iterdir() if p.name.isdecimal())[:-KEPT]:
            shutil.rmtree(self._folder / str(old))

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_) -> None:
        self._thread.shutdown()
        self._stager.close()


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
