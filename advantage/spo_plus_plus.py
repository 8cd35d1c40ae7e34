"""SPO++: one trajectory per prompt, its prompt's frozen value as the baseline, whitened under the token measure."""

from advantage.checks import BadInput
from advantage.normalization import normalize


def spo_plus_plus(rewards, values, action_tokens, groups, normalization):
    """A_i = R_i - v_i, normalized over the update; arXiv 2608.24870, Eq. 1 and 6.

    `normalization="trajectory"` is the paper's ablation (Table 2). Groups play no part.
    """
    if values is None:
        raise BadInput("MISSING", "spo++ needs values, the value of each trajectory's prompt when it was reserved")
    return normalize(rewards - values, action_tokens, normalization or "token")
