"""What a trainer begins with: what the newest checkpoint of its run holds, or version 0.

    checkpoints/30/ ─▶ policy, optimizer, reference, receipts, state       none ─▶ weights/0/ ─▶ the same, as new
        └ if it is damaged, the one before

What killed trainers left unfinished is deleted.
"""

import logging
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import checkpoint_folder
from pipeline.config import Config
from pipeline.weights import read_manifest
from trainer import checkpoint, memory
from trainer.attention import described, suit
from trainer.disk import remove_drafts
from trainer.initial_weights import fill
from trainer.model import recompute_layers
from trainer.ranks import Ranks
from trainer.receipts import Receipts
from trainer.reference import make_reference
from trainer.sharding import sharded
from trainer.step import make_optimizer
from trainer.update import Updater

log = logging.getLogger(__name__)


class Resumed(NamedTuple):
    updater: Updater
    receipts: Receipts | None  # with advantage.evidence = "receipt"
    state: dict[str, Any]  # version, recent, probe: as checkpoints have it


def resume(config: Config, ranks: Ranks) -> Resumed:
    """Every rank calls it. Raises CheckpointError or ModelError."""
    folder = config.folder

    def look() -> dict[str, Any]:
        for written in ("checkpoints", "weights"):
            remove_drafts(folder / written)
        if found is not None:
            return checkpoint_folder.read_state(found)
        probe = list(read_manifest(folder / "weights" / "0").probe_tokens)
        return {"version": 0, "recent": [], "probe": probe, "credits": []}

    found = checkpoint.find(folder / "checkpoints", ranks)
    state = ranks.on_first(look)
    updater = make_updater(config.model_path if found else folder / "weights" / "0", config, ranks, found)
    if found:
        updater.stepper.skipped_in_a_row = state["skipped_in_a_row"]
    if ranks.first:
        parameters = sum(parameter.numel() for parameter in updater.model.parameters())
        log.info("memory, by arithmetic: %s", memory.described(config, updater.model.config, parameters))
    if config.advantage.evidence == "event":
        return Resumed(updater, None, state)
    previous = ranks.on_each(lambda: checkpoint.read_previous(found)) if found else []
    return Resumed(updater, Receipts(updater, previous, state["credits"]), state)


def make_updater(base: Path, config: Config, ranks: Ranks, found: Path | None = None) -> Updater:
    """Policy, optimizer and reference on all ranks. `found`, a checkpoint, fills them: then no weights are read from
    the model folder `base`, and there need not be any."""
    policy, reference = sharded(base, config, ranks), make_reference(base, config, ranks)
    if config.trainer.activation_checkpointing:
        recompute_layers(policy)
    updater = Updater(policy, make_optimizer(policy, config), config, ranks, "alone", reference)
    if found:
        checkpoint.load(found, updater)
    else:
        for model in filter(None, (policy, reference)):
            fill(model, base, ranks)
    updater.layout = suit(policy, ranks.device)
    policy.reshard()  # which otherwise a backward pass does
    if reference is not None:  # the same trajectories, laid in the same way
        reference.config._attn_implementation = policy.config._attn_implementation
    if ranks.first:
        log.info("attention: %s", described(policy, updater.layout, ranks.device, config.model.dtype))
    return updater
