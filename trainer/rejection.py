"""Which action tokens the loss leaves out, because trainer and engine disagree about them too much.

    log π_prox, log π_rollout ──k1 | k2 | k3──▶ one number a token, in nats, 0 where they agree
                                                  │ sequence: its mean over the trajectory, for all its tokens
                                                  ▼
                                     kept if low <= number <= high

It is decided before L_i is counted: a token that is left out has no part in the loss, its divisor or the measure under
which the advantages are centred.
"""

from math import inf

import numpy as np
import torch

from pipeline.config import Loss
from trainer.aggregation import trajectory_means
from trainer.divergence import KL_ESTIMATORS, k3


def rejected(proximal: torch.Tensor, rollout: torch.Tensor, counts: torch.Tensor, config: Loss) -> torch.Tensor:
    """[n] bool: what the loss leaves out.

    proximal, rollout  [n] float32 nats, of the trainer at the start of the update, of each segment's own engine
    counts             [m] int64, tokens of each trajectory, one after another in [n]
    config             rejection, rejection_measure, rejection_low, rejection_high
    """
    disagreement = KL_ESTIMATORS[config.rejection_measure](proximal - rollout)
    if config.rejection == "sequence":
        disagreement = trajectory_means(disagreement, counts).repeat_interleave(counts)
    # NaN is not: a model that computes it must fail loudly, not train on nothing
    low, high = config.rejection_low, config.rejection_high
    return (disagreement < (-inf if low is None else low)) | (disagreement > (inf if high is None else high))


def mismatch(proximal: torch.Tensor, rollout: torch.Tensor) -> tuple[float, float]:
    """Of one micro-batch, whatever of it is rejected then: sum of k3 and largest |log-ratio| of its action tokens."""
    apart = proximal - rollout
    return float(k3(apart).sum()), float(apart.abs().max()) if len(apart) else 0.0


def rejection_metrics(before: np.ndarray, after: np.ndarray, apart: list[tuple[float, float]]) -> dict[str, float]:
    """Shares of the action tokens, and of the trajectories that had some, which the loss leaves out; and the mismatch
    of all of them.

    before, after  [n] action tokens of each trajectory
    apart          the `mismatch` of each micro-batch
    """
    had, tokens = before > 0, max(before.sum(), 1)
    return {
        "rejected_fraction": float((before.sum() - after.sum()) / tokens),
        "rejected_trajectories": float((after[had] == 0).sum() / max(had.sum(), 1)),
        "mismatch_kl": float(sum(total for total, _ in apart) / tokens),
        "mismatch_max": max(largest for _, largest in apart),
    }
