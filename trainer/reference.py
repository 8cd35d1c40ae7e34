"""The policy that loss.kl holds the trained one close to: as it was at version 0, or following slowly.

    initial   θ_ref stays
    ewma      θ_ref <- d θ_ref + (1 - d) θ      after every update, d = loss.reference_decay

It is sharded like the policy, in float32, and part of every checkpoint.
"""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from pipeline.config import Config
from trainer.ranks import Ranks, own_part
from trainer.sharding import sharded


def make_reference(path: Path, config: Config, ranks: Ranks) -> PreTrainedModel | None:
    """The model in a Hugging Face folder, without gradients and not yet filled; None if nothing uses it."""
    if config.loss.kl == 0:
        return None
    return sharded(path, config, ranks).requires_grad_(False)


@torch.no_grad()
def follow(reference: PreTrainedModel, policy: PreTrainedModel, decay: float) -> None:
    """One step of the EWMA; both sharded alike, so each rank moves its own shard."""
    for model in (reference, policy):
        model.reshard()  # after a forward without backward, the outermost parameters are still whole
    for mine, its in zip(reference.parameters(), policy.parameters(), strict=True):
        own_part(mine).lerp_(own_part(its), 1 - decay)
