"""Numbers that describe a run, and the difference between two.

Of a reward curve r_1 … r_T, one point per plotted step (arXiv 2608.24870, A.1):
auc_trapezoid (ALFWorld), auc_mean (Math-TIR), end_reward, learning_composite; compared in pairs by paired_difference.
Of one update: actor_center, measure_mismatch, length_correlation, brier, reliability.
"""

import math
from dataclasses import dataclass

import numpy as np

from advantage.checks import BadInput, counts, fractions, numbers, same_length
from advantage.normalization import normalize


def auc_trapezoid(rewards):
    """Area under the curve by trapezoids, divided by T - 1; r_1 when T = 1 (Eq. 7)."""
    rewards = curve(rewards)
    if len(rewards) == 1:
        return float(rewards[0])
    return float(np.mean((rewards[:-1] + rewards[1:]) / 2))


def auc_mean(rewards):
    """Area under the curve by rectangles: the mean of the points."""
    return float(np.mean(curve(rewards)))


def end_reward(rewards):
    """Mean of the last five points, or of all when there are fewer."""
    return float(np.mean(curve(rewards)[-5:]))


def learning_composite(rewards):
    """C_10 = (auc_trapezoid(r_1..10) + mean(r_6..10)) / 2 of the first ten points; needs ten (Eq. 8)."""
    rewards = curve(rewards)
    if len(rewards) < 10:
        raise BadInput("LENGTH", f"the learning composite needs 10 points, found {len(rewards)}")
    return (auc_trapezoid(rewards[:10]) + float(np.mean(rewards[5:10]))) / 2


def matched(run, baseline):
    """Both curves cut to their common number of points, before anything is computed from either."""
    run, baseline = curve(run), curve(baseline)
    common = min(len(run), len(baseline))
    return run[:common], baseline[:common]


@dataclass(frozen=True)
class PairedDifference:
    """mean and sample standard deviation (nan for a single pair) of `differences`, one per pair."""

    mean: float
    sd: float
    differences: tuple


def paired_difference(runs, baselines, metric=auc_trapezoid):
    """metric(run) - metric(baseline) of each pair of curves, matched first.

    runs, baselines  the same number of curves; those at one position share everything but the method
    """
    same_length(runs=runs, baselines=baselines)
    pairs = [matched(run, baseline) for run, baseline in zip(runs, baselines, strict=True)]
    if not pairs:
        raise BadInput("EMPTY", "expected at least one pair of runs, found none")
    differences = [metric(run) - metric(baseline) for run, baseline in pairs]
    sd = float(np.std(differences, ddof=1)) if len(pairs) > 1 else math.nan
    return PairedDifference(float(np.mean(differences)), sd, tuple(differences))


def actor_center(advantages, action_tokens):
    """ΣLÃ/ΣL, the mean advantage that a token-mean loss sees (Eq. 5); 0 without action tokens."""
    advantages, action_tokens = numbers("advantages", advantages), counts("action_tokens", action_tokens)
    same_length(advantages=advantages, action_tokens=action_tokens)
    total = action_tokens.sum()
    return float((advantages * action_tokens).sum() / total) if total else 0.0


def measure_mismatch(advantages, action_tokens):
    """Cov_n(L, Ã)/L̄ with Ã whitened over trajectories: the center that a token-mean loss would see of it (Eq. 5).

    However the advantages given are centered and scaled already; 0 where nothing is to be centered.
    """
    whitened, lengths = normalize(advantages, measure="trajectory"), counts("action_tokens", action_tokens)
    same_length(advantages=whitened, action_tokens=lengths)
    if not lengths.sum():
        return 0.0
    return float(np.mean((lengths - lengths.mean()) * (whitened - whitened.mean())) / lengths.mean())


def length_correlation(advantages, action_tokens):
    """Pearson's correlation of L and A over trajectories, in [-1, 1]; 0 where one of them does not vary."""
    advantages, lengths = numbers("advantages", advantages), counts("action_tokens", action_tokens)
    same_length(advantages=advantages, action_tokens=lengths)
    if not len(lengths) or min(np.ptp(advantages), np.ptp(lengths)) == 0:
        return 0.0
    return float(np.corrcoef(advantages, lengths)[0, 1])


def brier(values, outcomes):
    """Mean squared error of the frozen values as forecasts of the outcomes, both in [0, 1]; lower is better."""
    values, outcomes = fractions("values", values), fractions("outcomes", outcomes)
    same_length(values=values, outcomes=outcomes)
    if not len(values):
        raise BadInput("EMPTY", "expected at least one value and outcome, found none")
    return float(np.mean((values - outcomes) ** 2))


def reliability(values, outcomes, bins=10):
    """[bins, 3] float64: how many of the values lie in each part of [0, 1], their sum, and the sum of their outcomes.

    Sums of several updates add up; a part whose two sums are equal was forecast perfectly.
    """
    values, outcomes = fractions("values", values), fractions("outcomes", outcomes)
    same_length(values=values, outcomes=outcomes)
    parts = np.minimum((values * bins).astype(int), bins - 1)  # 1 belongs to the last one
    return np.stack([np.bincount(parts, weight, bins) for weight in (np.ones_like(values), values, outcomes)], axis=1)


def curve(rewards):
    rewards = numbers("rewards", rewards)
    if not len(rewards):
        raise BadInput("EMPTY", "expected a curve of at least one point, found none")
    return rewards
