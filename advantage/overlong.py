"""The soft overlong punishment of DAPO: what too long a trajectory loses of its reward.

length     0 ───────── limit - buffer ──────── limit ─────
reward           0                ╲  linear      -most         added to the trajectory's own
"""

import numpy as np

from advantage.checks import BadInput, counts


def overlong(lengths, limit, buffer, most=1.0):
    """[n] float64 in [-most, 0], to be added to the rewards; arXiv 2503.14476, Eq. 13.

    lengths  [n] tokens of each trajectory
    limit    tokens that a trajectory may have
    buffer   the last so many of them are penalised; 0: none is
    most     what the full length costs

    Raises BadInput unless 0 <= buffer < limit.
    """
    if not 0 <= buffer < limit:
        raise BadInput("RANGE", f"expected 0 <= buffer < limit, found buffer = {buffer}, limit = {limit}")
    lengths = counts("lengths", lengths)
    if buffer == 0:
        return np.zeros_like(lengths)
    return most * np.clip((limit - buffer - lengths) / buffer, -1, 0)
