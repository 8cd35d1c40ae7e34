"""GRPO: N trajectories of one prompt, each measured by the mean and the spread of its group.

DAPO and GSPO have the same advantages. DAPO differs in what is sampled (buffers.filter_metric), in the reward
(advantage.overlong_buffer) and in the loss (clip-higher, token mean); GSPO in the loss (loss.ratio = "sequence").
"""

import numpy as np

from advantage.groups import within_groups
from advantage.normalization import standardize

EPSILON = 1e-6


def grpo(rewards, values, action_tokens, groups, normalization):
    """A_i = (R_i - group mean) / (group std + 1e-6), std unbiased; arXiv 2402.03300, 4.1.2.

    The paper's outcome supervision, with the constant that public code adds. Values and lengths play no part.
    """
    return within_groups(lambda group: standardize(group, np.ones_like(group), EPSILON), rewards, groups)
