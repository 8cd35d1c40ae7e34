"""Dr. GRPO: GRPO without the two divisions that bias it, by the group's spread here, by the length in the loss."""

from advantage.groups import against_mean, within_groups


def dr_grpo(rewards, values, action_tokens, groups, normalization):
    """A_i = R_i - group mean; arXiv 2503.20783, 3.2. Its loss is loss.aggregation = "constant"."""
    return within_groups(against_mean, rewards, groups)
