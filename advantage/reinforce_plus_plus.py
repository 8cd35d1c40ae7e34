"""REINFORCE++: no value and no group; the batch's mean is the baseline."""

from advantage.normalization import normalize


def reinforce_plus_plus(rewards, values, action_tokens, groups, normalization):
    """Rewards standardized over the tokens of the whole update; arXiv 2501.03262, Global Advantage Normalization.

    The KL penalty that the paper takes from the reward is loss.kl here. Its variant "w/ baseline" subtracts the group's
    mean first, and would be a name of its own.
    """
    return normalize(rewards, action_tokens, normalization or "token")
