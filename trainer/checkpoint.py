"""Checkpoints: from one of these the run goes on exactly as if it had never stopped.

    checkpoints/30/   *.distcp      model, optimizer and reference, each rank its shard (torch.distributed.checkpoint)
                      state.json    version, the entries of the last batches, probe tokens, credits
                      previous.bin  each prompt's last trajectory, with advantage.evidence = "receipt"

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
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from pipeline import trajectory_file
from pipeline.errors import HeadraceError
from pipeline.trajectory import Trajectory
from trainer.publish import sync
from trainer.ranks import Ranks
from trainer.update import Updater

STATE, PREVIOUS = "state.json", "previous.bin"
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


def read_previous(path: Path) -> list[Trajectory]:
    return trajectory_file.read(path / PREVIOUS)


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

    def begin(self, updater: Updater, state: dict[str, Any], previous: list[Trajectory] | None = None) -> None:
        """Stage checkpoint state["version"] and have it written; the one before must be settled."""
        # What one rank sees on its disk must not decide whether it joins the others' collectives.
        draft = self._ranks.on_first(lambda: self._draft(state["version"]))
        staged = self._stager.stage(_tensors(updater)) if draft else None
        self._pending = self._thread.submit(self._write, draft, staged, state, previous)

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

    def _write(self, draft: Path | None, staged: dict[str, Any] | None, state: dict[str, Any], previous) -> Written:
        version, began = state["version"], time.monotonic()
        try:
            if draft is not None:
                dcp.save(staged, checkpoint_id=draft, process_group=self._group)
                if self._ranks.first:
                    self._finish(draft, state, previous)
        except (Exception, CheckpointException) as error:  # of disks, storage writers, and gloo where a rank is gone
            raise CheckpointError(
                f"checkpoint {self._folder / str(version)} cannot be written ({_reason(error)}): make room for it, or "
                "see what ended another rank, then start the run again; it goes on from the checkpoint before"
            ) from None
        return Written(version, time.monotonic() - began)

    def _finish(self, draft: Path, state: dict[str, Any], previous: list[Trajectory] | None) -> None:
        """All ranks have written their shards: the checkpoint gets its name, and all but the newest two go."""
        if previous is not None:
            trajectory_file.write(draft / PREVIOUS, previous)
        (draft / STATE).write_text(json.dumps(state))
        for path in draft.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync(draft)
        draft.rename(self._folder / str(state["version"]))
        sync(self._folder)
        for old in sorted(int(p.name) for p in self._folder.iterdir() if p.name.isdecimal())[:-KEPT]:
            shutil.rmtree(self._folder / str(old))

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_) -> None:
        self._thread.shutdown()
        self._stager.close()


def load(path: Path, updater: Updater) -> None:
    """Fill model, optimizer and reference from a checkpoint; more or fewer ranks may have written it."""
    tensors = _tensors(updater)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="torch")
            dcp.load(tensors, checkpoint_id=path)
    except (Exception, CheckpointException) as error:  # each storage reader raises its own kinds
        raise CheckpointError(
            f"checkpoint {path} cannot be read ({_reason(error)}); "
            "move that folder away and the run resumes from the one before it"
        ) from error
    policy, optimizer = tensors["model"], tensors["optimizer"]
    set_state_dict(updater.model, updater.optimizer, model_state_dict=policy, optim_state_dict=optimizer)
    if updater.reference is not None:
        set_model_state_dict(updater.reference, tensors["reference"])


def _tensors(updater: Updater) -> dict[str, Any]:
    policy, optimizer = get_state_dict(updater.model, updater.optimizer)
    tensors = {"model": policy, "optimizer": optimizer}
    if updater.reference is not None:
        tensors["reference"] = get_model_state_dict(updater.reference)
    return tensors


def _reason(error: BaseException) -> str:
    """One line; of several ranks' errors the first."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
