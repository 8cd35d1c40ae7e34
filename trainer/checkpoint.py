"""Checkpoints: from one of these the run goes on exactly as if it had never stopped. pipeline/checkpoint_folder.py has
what is in one.

    the loop   update 29 ─▶ stage ─▶ update 30 ─▶ update 31 ─▶ settle: durable on every rank, so the ledger is told
    a thread                  └─▶ write ─▶ digests ─▶ fsync ─▶ rename ──────┘

A checkpoint of version v contains updates 0 .. v-1. It is staged, which is a copy in the CPU's memory, while the loop
stands still, and written meanwhile under another name; what has the name is whole. No random number is drawn in
training, and the learning rate follows from the update's number, so neither has a state to keep.
"""

import logging
import os
import time
import uuid
import warnings
from collections.abc import Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from transformers import PreTrainedModel

from pipeline import checkpoint_folder, jsonl, trajectory_file
from pipeline.checkpoint_folder import PREVIOUS, PROMPTS, STATE, DamagedCheckpoint
from pipeline.errors import HeadraceError
from pipeline.trajectory import Trajectory
from trainer.disk import sync
from trainer.ranks import Ranks
from trainer.update import Updater

log = logging.getLogger(__name__)


class CheckpointError(HeadraceError):
    """A checkpoint that cannot be written or read."""

    code = "CHECKPOINT"


class Written(NamedTuple):
    version: int
    seconds: float  # the thread took for it, while the loop went on


def find(folder: Path, ranks: Ranks) -> Path | None:
    """The newest checkpoint in `folder` that is what was written. Damaged ones are set aside, and named in the log: the
    ledger keeps the batches since the one before the newest. Every rank calls it, and reads its share."""
    while path := ranks.on_first(lambda: checkpoint_folder.newest(folder)):
        if ranks.first:
            log.info("reading checkpoint %s, to see whether it is what was written", path.name)
        try:
            ranks.on_each(lambda path=path: checkpoint_folder.verify(path, _share(path, ranks)))
        except DamagedCheckpoint as damage:
            aside = ranks.on_first(lambda path=path: checkpoint_folder.set_aside(path))
            before = ranks.on_first(lambda: checkpoint_folder.newest(folder))
            if ranks.first:
                where = f"checkpoint {before.name}" if before else "version 0"
                log.error("%s: it is now %s, and the run goes on from %s, which came before it", damage, aside, where)
        else:
            return path
    return None


def _share(path: Path, ranks: Ranks) -> list[str]:
    return sorted(checkpoint_folder.read_state(path)["files"])[ranks.rank :: ranks.size]


def read_previous(path: Path) -> list[Trajectory]:
    return trajectory_file.read(path / PREVIOUS)


class Writer:
    """Writes checkpoints into `folder`, one at a time, and keeps the newest `kept`. Every rank has one and makes the
    same calls; its thread ends, with what it writes, when it is left as a context."""

    def __init__(self, folder: Path, ranks: Ranks, kept: int):
        self._folder, self._ranks, self._kept = folder, ranks, kept
        # its own, lest the thread's messages meet those of the updates
        self._group = dist.new_group(backend="gloo")
        self._stager = DefaultStager(StagingOptions(False, False, False, False))  # into plain memory, at once
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[Written] | None = None

    def begin(
        self,
        updater: Updater,
        state: dict[str, Any],
        prompts: Iterable[dict[str, Any]] = (),
        previous: list[Trajectory] | None = None,
    ) -> None:
        """Stage checkpoint state["version"] and have it written; the one before must be settled. prompts, previous: as
        rank 0 has them."""
        # What one rank sees on its disk must not decide whether it joins the others' collectives.
        draft = self._ranks.on_first(lambda: self._draft(state["version"]))
        staged = self._stager.stage(_tensors(updater)) if draft else None
        self._pending = self._thread.submit(self._write, draft, staged, state, prompts, previous)

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

    def _write(
        self, draft: Path | None, staged: dict[str, Any] | None, state: dict[str, Any], prompts, previous
    ) -> Written:
        version, began = state["version"], time.monotonic()
        try:
            if draft is not None:
                files = self._write_shards(draft, staged)
                if self._ranks.first:
                    self._finish(draft, state | {"parts": sorted(staged), "files": files}, prompts, previous)
        except Exception as error:  # of disks, and of gloo where a rank is gone
            raise CheckpointError(
                f"checkpoint {self._folder / str(version)} cannot be written ({_reason(error)}): make room for it, or "
                "see what ended another rank, then start the run again; it goes on from the checkpoint before"
            ) from None
        return Written(version, time.monotonic() - began)

    def _write_shards(self, draft: Path, staged: dict[str, Any]) -> dict[str, str]:
        """Each rank writes its own, and reads them again, which the system still has in memory; answers all digests.
        What keeps one rank from it is every rank's error, so that none waits for another."""
        own, error = {}, None
        try:
            dcp.save(staged, checkpoint_id=draft, process_group=self._group)
            shards = draft.glob(f"__{self._ranks.rank}_*")
            own = {path.name: checkpoint_folder.digest_of(path) for path in shards}
        except (Exception, CheckpointException) as raised:  # of disks and storage writers
            error = _reason(raised)
        every: list[tuple[dict[str, str], str | None]] = [({}, None)] * self._ranks.size
        dist.all_gather_object(every, (own, error), group=self._group)
        if error := next((error for _, error in every if error), None):
            raise CheckpointError(error)
        return {name: digest for shards, _ in every for name, digest in shards.items()}

    def _finish(self, draft: Path, state: dict[str, Any], prompts, previous: list[Trajectory] | None) -> None:
        """All ranks have written their shards: the checkpoint gets its name, and those that are too old go."""
        (draft / PROMPTS).write_bytes(b"".join(map(jsonl.as_line, prompts)))
        if previous is not None:
            trajectory_file.write(draft / PREVIOUS, previous)
        others = [path for path in draft.iterdir() if path.name not in state["files"]]
        files = state["files"] | {path.name: checkpoint_folder.digest_of(path) for path in others}
        checkpoint_folder.write_state(draft, state | {"files": files})
        for path in draft.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync(draft)
        draft.rename(self._folder / str(state["version"]))
        sync(self._folder)
        checkpoint_folder.retain(self._folder, self._kept)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_) -> None:
        self._thread.shutdown()
        self._stager.close()


def load(path: Path, updater: Updater) -> None:
    """Fill model, optimizer and reference from a checkpoint; more or fewer ranks may have written it.

    One that a run was forked from need not have all parts: the optimizer begins anew then, and the reference with the
    policy. What the optimizer is set to, such as its learning rate, is this run's in any case.
    """
    tensors = _tensors(updater, checkpoint_folder.read_state(path)["parts"])
    _read(path, tensors)
    set_model_state_dict(updater.model, tensors["model"])
    if "optimizer" in tensors:
        settings = [{k: v for k, v in group.items() if k != "params"} for group in updater.optimizer.param_groups]
        set_optimizer_state_dict(updater.model, updater.optimizer, tensors["optimizer"])
        for group, own in zip(updater.optimizer.param_groups, settings, strict=True):
            group.update(own)
    if updater.reference is not None:
        set_model_state_dict(updater.reference, tensors.get("reference", tensors["model"]))


def load_policy(path: Path, model: PreTrainedModel) -> None:
    """Fill a whole model from a checkpoint, without a process group."""
    tensors = {"model": get_model_state_dict(model)}
    _read(path, tensors, no_dist=True)
    set_model_state_dict(model, tensors["model"])


def _read(path: Path, tensors: dict[str, Any], **options: bool) -> None:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="torch")
            dcp.load(tensors, checkpoint_id=path, **options)
    except (Exception, CheckpointException) as error:  # each storage reader raises its own kinds
        raise CheckpointError(
            f"checkpoint {path} cannot be read ({_reason(error)}); "
            "move that folder away and the run resumes from the one before it"
        ) from error


def _tensors(updater: Updater, parts: Collection[str] = ("model", "optimizer", "reference")) -> dict[str, Any]:
    tensors = {"model": get_model_state_dict(updater.model)}
    if "optimizer" in parts:
        tensors["optimizer"] = get_optimizer_state_dict(updater.model, updater.optimizer)
    if "reference" in parts and updater.reference is not None:
        tensors["reference"] = get_model_state_dict(updater.reference)
    return tensors


def _reason(error: BaseException) -> str:
    """One line; of several ranks' errors the first."""
    if isinstance(error, CheckpointError):
        return str(error)
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
