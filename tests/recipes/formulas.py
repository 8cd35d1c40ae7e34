"""Advantages of every recipe, one trajectory after the other: from the papers, not from the product, which is held
against them. Their losses: tests/trainer/oracle.py.
"""

import math
import statistics
from collections.abc import Sequence

GROUPED = {  # baseline and scale of one member, from the rewards of its group
    "grpo": lambda r, group: (r - statistics.fmean(group)) / (deviation(group) + 1e-6),
    "dr_grpo": lambda r, group: r - statistics.fmean(group),
    "rloo": lambda r, group: r - (math.fsum(group) - r) / (len(group) - 1),
}
GROUPED |= dict.fromkeys(("dapo", "gspo"), GROUPED["grpo"])


def deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def advantages(algorithm: str, measure: str | None, rewards, values, lengths, groups) -> list[float]:
    """SPO++ 2608.24870 Eq. 1, 4, 6; GRPO 2402.03300; Dr. GRPO 2503.20783; RLOO 2402.14740; REINFORCE++ 2501.03262."""
    if algorithm in GROUPED:
        of = {g: [r for r, other in zip(rewards, groups, strict=True) if other == g] for g in groups}
        return [GROUPED[algorithm](r, of[g]) for r, g in zip(rewards, groups, strict=True)]
    if algorithm == "reinforce++":
        return standardized(rewards, [1] * len(rewards) if measure == "trajectory" else lengths)
    raw = [r - v for r, v in zip(rewards, values, strict=True)]
    measure = measure or {"spo++": "token", "spo": "trajectory"}[algorithm]
    return standardized(raw, {"token": lengths, "trajectory": [1] * len(raw)}[measure])


def standardized(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    mean = math.fsum(w * a for w, a in zip(weights, values, strict=True)) / total
    square = math.fsum(w * (a - mean) ** 2 for w, a in zip(weights, values, strict=True)) / (total - 1)
    return [(a - mean) / (math.sqrt(square) + 1e-8) for a in values]


def overlong(length: int, longest: int, buffer: int, penalty: float) -> float:
    """What is added to the reward; DAPO 2503.14476 Eq. 13, down to -penalty."""
    return -penalty * min(max(length - (longest - buffer), 0) / buffer, 1) if buffer else 0.0


def retention(drift: float | None) -> float:
    """SPO 2509.13232: half of the evidence is kept at a drift of 0.06 nats a token, within [0.875, 0.96]."""
    return 0.96 if drift is None else min(max(2 ** (-drift / 0.06), 0.875), 0.96)
