"""SPO: one trajectory per prompt, its prompt's frozen value as the baseline, whitened over trajectories."""

from advantage.checks import BadInput
from advantage.normalization import normalize


def spo(rewards, values, action_tokens, groups, normalization):
    """A_i = R_i - v_i, mean and unbiased std over the n trajectories of the update; arXiv 2509.13232.

    As `spo++` but for the measure. SPO as published also credits outcomes as advantage.evidence = "receipt" does, with
    the retention of retention.py, and caps the loss at loss.dual_clip = 10.
    """
    if values is None:
        raise BadInput("MISSING", "spo needs values, the value of each trajectory's prompt when it was reserved")
    return normalize(rewards - values, action_tokens, normalization or "trajectory")
