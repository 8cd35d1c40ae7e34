"""RLOO: each trajectory against the mean of the *others* of its prompt, so that its baseline never contains itself."""

from advantage.groups import against_mean, within_groups


def rloo(rewards, values, action_tokens, groups, normalization):
    """A_i = R_i - mean of the other N - 1 = N/(N - 1) (R_i - group mean); arXiv 2402.14740, RLOO."""
    return within_groups(leave_one_out, rewards, groups)


def leave_one_out(rewards):
    others = max(len(rewards) - 1, 1)  # a group of one has no advantage anyway
    return len(rewards) / others * against_mean(rewards)
