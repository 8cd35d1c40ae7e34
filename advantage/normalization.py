"""Center and scale one batch of advantages under the measure that the loss will use.

    measure       weight of trajectory i      what is then zero
    token         L_i, its action tokens      Σ L Ã : the center of a token-mean loss      (SPO++, Eq. 6)
    trajectory    1                           Σ Ã   : leaves Cov(L, Ã)/mean(L) in the loss (SPO, Eq. 4 and 5)
    none          -                           nothing; advantages pass unchanged

The batch is the batch of the loss denominator: all ranks and micro-batches of one update, never one of them alone.
"""

import numpy as np

from advantage.checks import BadInput, counts, known, numbers, same_length

MEASURES = ("token", "trajectory", "none")
EPSILON = 1e-8


def normalize(advantages, action_tokens=None, measure="token"):
    """Ã = (A - μ) / (σ + 1e-8) with μ and the unbiased σ under `measure`; arXiv 2608.24870, Eq. 4 and 6.

    advantages     [n] finite numbers
    action_tokens  [n] whole numbers >= 0; needed by the token measure. A trajectory with 0 of them has no weight.

    Returns float64[n]: zeros where σ is 0 or undefined (a total weight of at most 1), and empty for an empty batch.
    Raises BadInput.
    """
    known("measure", measure, MEASURES)
    advantages = numbers("advantages", advantages)
    action_tokens = None if action_tokens is None else counts("action_tokens", action_tokens)
    same_length(advantages=advantages, action_tokens=action_tokens)
    if measure == "none":
        return advantages.copy()
    if measure == "trajectory":
        return standardize(advantages, np.ones_like(advantages))
    if action_tokens is None:
        raise BadInput("MISSING", "the token measure needs action_tokens, one count per trajectory")
    return standardize(advantages, action_tokens)


def standardize(advantages, weights, epsilon=EPSILON):
    """Deviations from the weighted mean in units of the weighted, unbiased σ + epsilon; zeros as `normalize` says."""
    total = weights.sum()
    weighted = advantages[weights > 0]
    # Equal advantages are compared, not left to σ: a mean of equal numbers may round, and no epsilon would hide that.
    if total <= 1 or weighted.min() == weighted.max():
        return np.zeros_like(advantages)
    # Divided by a power of two, which is exact, so that the squares of large finite rewards cannot overflow.
    exponent = max(0, int(np.frexp(np.abs(weighted).max())[1]))
    deviations = np.ldexp(advantages, -exponent)
    # Centered twice: the first mean is off by the rounding of a large A, the second only by that of the deviations.
    for _ in range(2):
        deviations = deviations - np.average(deviations, weights=weights)
    # The root of the weight goes inside the square: a trajectory without weight may have a square that overflows.
    sigma = np.sqrt(np.sum((np.sqrt(weights) * deviations) ** 2) / (total - 1))
    return deviations / (sigma + np.ldexp(epsilon, -exponent))
