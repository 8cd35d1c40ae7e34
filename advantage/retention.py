"""How much of a prompt's evidence outlives one update, by how far the update moved the policy on that prompt (SPO).

drift D     0 … 0.0035     0.06 · log₂(1/ρ)     0.0116 …       nats a token
ρ             0.96             2^(-D/0.06)        0.875         a visit that changed nothing keeps the most
"""

import math

from advantage.checks import BadInput

HALF_LIFE = 0.06  # nats of drift that halve the evidence
LEAST, MOST = 0.875, 0.96


def retention(drift):
    """ρ = 2^(-drift/0.06), at least 0.875 and at most 0.96; arXiv 2509.13232, the KL-adaptive value tracker.

    drift  mean |Δ log p| over the action tokens of the prompt's previous trajectory, nats; 0 at its first visit.

    Raises BadInput for a drift that is negative or not finite.
    """
    if not 0 <= drift < math.inf:
        raise BadInput("RANGE", f"drift is {drift}, expected a finite number of nats >= 0")
    return min(max(2 ** (-drift / HALF_LIFE), LEAST), MOST)
