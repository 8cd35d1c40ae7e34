"""Advantages: from the rewards of one update's trajectories to one number per trajectory. Pure functions on arrays.

    outcomes ──Evidence──▶ value v ──sampling_weight──▶ how often its prompt is drawn
                             │ frozen at Reserve
    rewards R ──overlong──▶  R - baseline ──normalize──▶ Ã ──▶ the loss: every action token of a trajectory gets its Ã
                                 │
       BY_VALUE    v: what the prompt came to before
       BY_BATCH    the mean of the whole update
       BY_GROUP    the mean of the trajectories of its entry

One estimator is one file with one function `(rewards, values, action_tokens, groups, normalization) -> float64[n]`,
and one line in the table of its baseline.
"""

import numpy as np

from advantage import metrics
from advantage.checks import BadInput, counts, known, numbers, refuse, same_length
from advantage.dr_grpo import dr_grpo
from advantage.evidence import Evidence
from advantage.grpo import grpo
from advantage.normalization import normalize
from advantage.overlong import overlong
from advantage.reinforce_plus_plus import reinforce_plus_plus
from advantage.retention import retention
from advantage.rloo import rloo
from advantage.sampling import sampling_weight
from advantage.spo import spo
from advantage.spo_plus_plus import spo_plus_plus

__all__ = [
    "BY_GROUP",
    "BY_VALUE",
    "ESTIMATORS",
    "BadInput",
    "Evidence",
    "estimate",
    "metrics",
    "normalize",
    "overlong",
    "retention",
    "sampling_weight",
]

BY_VALUE = {
    "spo++": spo_plus_plus,
    "spo": spo,
}
BY_BATCH = {
    "reinforce++": reinforce_plus_plus,
}
BY_GROUP = {
    "grpo": grpo,
    "dapo": grpo,
    "gspo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
}
ESTIMATORS = BY_VALUE | BY_BATCH | BY_GROUP


def estimate(algorithm, rewards, *, values=None, action_tokens=None, groups=None, normalization=None):
    """One advantage per trajectory, over the whole batch of one update.

    algorithm      a name in ESTIMATORS
    rewards        [n] any finite numbers
    values         [n] each prompt's value, frozen when its entry was reserved
    action_tokens  [n] generated tokens that the loss will use; never tool, observation or padding tokens
    groups         [n] any labels; trajectories of one entry share one
    normalization  "token" | "trajectory" | "none"; None: the algorithm's own, and the only one BY_GROUP

    Returns float64[n], of which float32 can hold each. Raises BadInput, a ValueError, for anything else.
    """
    estimator = ESTIMATORS[known("algorithm", algorithm, ESTIMATORS)]
    if normalization is not None and algorithm in BY_GROUP:
        raise BadInput("UNKNOWN", f"{algorithm} normalizes within groups; found normalization = {normalization!r}")
    rewards = numbers("rewards", rewards)
    values = None if values is None else numbers("values", values)
    action_tokens = None if action_tokens is None else counts("action_tokens", action_tokens)
    same_length(rewards=rewards, values=values, action_tokens=action_tokens, groups=groups)
    with np.errstate(over="ignore", invalid="ignore"):
        advantages = estimator(rewards, values, action_tokens, groups, normalization)
    too_large = ~(np.abs(advantages) <= np.finfo(np.float32).max)
    refuse("advantages", advantages, too_large, "RANGE", "what float32 can hold; scale the rewards down")
    return advantages
