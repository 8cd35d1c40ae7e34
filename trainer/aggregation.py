"""How the tokens' losses become one number, decided once for the whole update.

    token      Σ ℓ / ΣL                    every token weighs the same
    sequence   Σ_i (Σ_t ℓ / L_i) / n       every trajectory weighs the same, whatever its length L_i
    constant   Σ ℓ / (n · C)               as token, but the divisor does not follow the lengths

Each is a weight per token of each trajectory. The weights come from all trajectories of the update, so the parts of it
(ranks, micro-batches, rows) add up, and nothing depends on how it was cut. An update of K optimizer steps multiplies
all of them by K: one divisor for all steps is what keeps the update's measure.
"""

from dataclasses import dataclass

import numpy as np
import torch

from pipeline.config import Config


@dataclass(frozen=True)
class Divisors:
    """What the sums over one optimizer step are divided by: the update's, through its number of steps.

    tokens        action tokens that the loss uses
    trajectories  those that have any
    weights       [n] of a token of each trajectory of the update; None: 1 / tokens
    """

    tokens: float
    trajectories: float
    weights: np.ndarray | None


def divisors_of(counts: np.ndarray, config: Config) -> Divisors:
    """counts: [n] action tokens of each trajectory of the whole update that the loss uses."""
    steps = config.trainer.minibatches
    aggregation = config.loss.aggregation
    weights = None if aggregation == "token" else token_weights(counts, aggregation, config.rollout.context_length)
    return Divisors(
        counts.sum() / steps, np.count_nonzero(counts) / steps, None if weights is None else steps * weights
    )


def token_weights(counts: np.ndarray, aggregation: str, longest: int) -> np.ndarray:
    """[n] float64, what a token of each trajectory weighs in the update's loss.

    counts       [n] action tokens of each trajectory
    aggregation  "token" | "sequence" | "constant"
    longest      C of "constant": tokens that a trajectory can have at most

    A trajectory without action tokens is not counted by `sequence`, and is by `constant`.
    DAPO 2503.14476 Eq. 8 (token); GRPO 2402.03300 Eq. 3 (sequence); Dr. GRPO 2503.20783 Sec. 3.2, Listing 1 (constant).
    """
    counts = np.asarray(counts, np.float64)
    if aggregation == "token":
        return np.full(len(counts), 1 / max(counts.sum(), 1))
    if aggregation == "sequence":
        return 1 / (np.maximum(counts, 1) * max(np.count_nonzero(counts), 1))
    return np.full(len(counts), 1 / (max(len(counts), 1) * longest))


def trajectory_sums(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """[m]: values [n] of the tokens of m trajectories, one after another, summed within each; counts [m] int64."""
    if not len(counts):
        return values  # nothing, but with its gradient: a rank that has no trajectory still joins the backward pass
    return torch.segment_reduce(values, "sum", lengths=counts)


def trajectory_means(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """[m]; 0 for a trajectory without tokens."""
    return trajectory_sums(values, counts) / counts.clamp(min=1)
