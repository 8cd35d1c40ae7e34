"""How often a prompt is drawn: most where the policy succeeds half of the time, and never never."""

import math

from advantage.checks import BadInput

FLOOR = 0.05


def sampling_weight(value):
    """sqrt(v (1 - v)) + 0.05, from 0.05 to 0.55; the standard deviation of a binary outcome. arXiv 2608.24870, 2.4."""
    if not 0 <= value <= 1:
        raise BadInput("RANGE", f"value is {value}, expected a number in [0, 1]")
    return math.sqrt(value * (1 - value)) + FLOOR
