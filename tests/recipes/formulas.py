"""Advantages and losses of every recipe, one trajectory after the other: from the papers, not from the product, which
they are held against.

    R, v, L, group ─▶ advantages          per trajectory
    log π, log π_prox, log π_rollout, Ã ─▶ loss of one optimizer step, with gradient
"""

import math
import statistics
from collections.abc import Sequence

import torch

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


def trajectory_loss(logprobs, proximal, rollout, reference, advantage: float, loss) -> torch.Tensor:
    """[L] what each action token of one trajectory adds, before it is averaged; `loss`: the run's [loss]."""
    log_ratio = logprobs - proximal
    if loss.ratio == "sequence":  # GSPO 2507.18071 Eq. 7
        log_ratio = log_ratio.mean().expand_as(log_ratio)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
    losses = torch.maximum(-advantage * ratio, -advantage * clipped)
    if advantage < 0 and math.isfinite(loss.dual_clip):
        losses = losses.clamp(max=-loss.dual_clip * advantage)
    away = proximal - rollout
    if loss.importance == "sequence":
        away = away.sum().expand_as(away)
    weight = away.clamp(-20, 20).exp().clamp(max=loss.importance_cap) if loss.importance != "none" else 1.0
    return weight * losses + loss.kl * ((reference - logprobs).exp() - (reference - logprobs) - 1)  # GRPO, Eq. 4


def averaged(parts: Sequence[torch.Tensor], steps: int, tokens: int, trajectories: int, longest: int, loss):
    """The loss of one of `steps` optimizer steps; tokens, trajectories: of the whole update, those without tokens not
    counted."""
    if loss.aggregation == "token":
        return sum(part.sum() for part in parts) / (tokens / steps)
    if loss.aggregation == "sequence":
        return sum(part.mean() for part in parts) / (trajectories / steps)
    return sum(part.sum() for part in parts) / (trajectories / steps * longest)


def retention(drift: float | None) -> float:
    """SPO 2509.13232: half of the evidence is kept at a drift of 0.06 nats a token, within [0.875, 0.96]."""
    return 0.96 if drift is None else min(max(2 ** (-drift / 0.06), 0.875), 0.96)
