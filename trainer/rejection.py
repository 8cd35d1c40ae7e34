"""Which action tokens the loss leaves out, because trainer and engine disagree about them too much.

    log π_prox, log π_rollout ──k1 | k2 | k3──▶ one number a token, in nats, 0 where they agree
                                                  │ sequence: its mean over the trajectory, for all its tokens
                                                  ▼
                                     kept if low <= number <= high

It is decided before L_i is counted: a token that is left out has no part in the loss, its divisor or the measure under
which the advantages are centred.
"""

from math import inf

import torch

from pipeline.config import Loss
from trainer.aggregation import trajectory_means
from trainer.divergence import KL_ESTIMATORS


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
