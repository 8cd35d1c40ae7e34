"""Trajectories of one entry, compared with each other and with no one else.

    groups      a    b    a    a    b            any labels, in any order, of any sizes
    rewards     1    0    0    1    0
                │    │    │    │    │
    compare  [1, 0, 1] of a,  [0, 0] of b  ──▶  back to where they stood

A group of one, or one whose members were all rewarded alike, says nothing about what is better: its advantages are 0.
Every member counts, also one without action tokens: its reward is a sample of what the policy does with that prompt.
"""

import numpy as np

from advantage.checks import BadInput


def within_groups(compare, rewards, groups):
    """float64[n]: what `compare`, from the rewards of one group to as many advantages, says of each group."""
    if groups is None:
        raise BadInput("MISSING", "a group algorithm needs groups, the label of each trajectory's entry")
    members = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    advantages = np.zeros_like(rewards)
    for group in members.values():
        advantages[group] = compare(rewards[group])
    return advantages


def against_mean(rewards):
    """R - mean of the group, exactly 0 where all are alike: a mean of equal numbers may round."""
    return rewards - rewards.mean() if np.ptp(rewards) else np.zeros_like(rewards)
