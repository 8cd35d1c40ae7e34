"""Advantages: from the rewards of one update's trajectories to one number per trajectory. Pure functions on arrays.

    outcomes ──Evidence──▶ value v ──sampling_weight──▶ how often its prompt is drawn
                             │ frozen at Reserve
    rewards R ──────────▶ A = R - v ──normalize──▶ Ã ──▶ the loss: every action token of a trajectory gets its Ã

One estimator is one file with one function `(rewards, values, action_tokens, groups, normalization) -> float64[n]`,
and one line in ESTIMATORS.
"""

from advantage import metrics
from advantage.checks import BadInput, counts, known, numbers, same_length
from advantage.evidence import Evidence
from advantage.normalization import normalize
from advantage.retention import retention
from advantage.sampling import sampling_weight
from advantage.spo_plus_plus import spo_plus_plus

__all__ = ["ESTIMATORS", "BadInput", "Evidence", "estimate", "metrics", "normalize", "retention", "sampling_weight"]

ESTIMATORS = {
    "spo++": spo_plus_plus,
}


def estimate(algorithm, rewards, *, values=None, action_tokens=None, groups=None, normalization=None):
    """One advantage per trajectory, over the whole batch of one update.

    algorithm      a name in ESTIMATORS
    rewards        [n] any finite numbers
    values         [n] each prompt's value, frozen when its entry was reserved
    action_tokens  [n] generated tokens that the loss will use; never tool, observation or padding tokens
    groups         [n] any labels; trajectories of one entry share one
    normalization  "token" | "trajectory" | "none"; None: the algorithm's own

    Returns float64[n]. Raises BadInput, a ValueError, for anything else.
    """
    estimator = ESTIMATORS[known("algorithm", algorithm, ESTIMATORS)]
    rewards = numbers("rewards", rewards)
    values = None if values is None else numbers("values", values)
    action_tokens = None if action_tokens is None else counts("action_tokens", action_tokens)
    same_length(rewards=rewards, values=values, action_tokens=action_tokens, groups=groups)
    return estimator(rewards, values, action_tokens, groups, normalization)
