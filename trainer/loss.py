"""The loss of one update: PPO with clip-higher and Dual-Clip, weighted by a truncated importance ratio.

    r = exp(log π - log π_prox)          how far this step has moved            clipped to [1 - low, 1 + high]
    w = min(exp(log π_prox - log π_rollout), cap)      how far the engines' policy was away, no gradient

    ℓ = max(-Ã r, -Ã clip(r)),   for Ã < 0 at most -c Ã         loss = Σ w ℓ over action tokens / tokens

    ratio = "sequence"        r is the trajectory's: exp of the mean over its tokens (GSPO)
    importance = "sequence"   w is the trajectory's: exp of the sum
    kl, entropy               loss += kl Σ k3(log π_ref - log π) / tokens,   loss -= entropy Σ H(π) / tokens
    aggregation               other weights than 1 / tokens: trainer/aggregation.py

`tokens` counts the loss tokens of the *whole* optimizer step, all ranks and micro-batches, so the losses and metrics of
micro-batches simply add up, and the measure is the one under which the advantages were centred (ΣL Ã = 0).
"""

from collections.abc import Iterable

import numpy as np
import torch

from pipeline.config import Loss
from trainer.aggregation import token_weights, trajectory_means, trajectory_sums
from trainer.divergence import exp, k3


def policy_loss(
    logprobs: torch.Tensor,
    proximal: torch.Tensor,
    rollout: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    config: Loss,
    tokens: float | None = None,
    *,
    trajectories: float | None = None,
    counts: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    reference: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Actor loss and its metrics; design: algorithms.md, Loss.

    logprobs      [...] float32 nats, of the policy in training, with gradient
    proximal      [...] float32 nats, of the policy at the start of the update (or the rollout's); no gradient flows
    rollout       [...] float32 nats, as each segment's own engine reported them
    advantages    [...] one per token, or broadcastable
    mask          [...] 1: action token that counts; whatever the others hold is never looked at
    config        the section [loss]; what it says of rejection has been done to the mask already
    tokens        the denominator; None: the mask's own sum, right if this is the whole step
    trajectories  the denominator of what is counted by trajectory; None: those that have a token here
    counts        [m] int64, tokens of each trajectory, one after another in what the mask keeps; None: a row is one
    weights       [m] of a token of each trajectory in the loss; None: those of config.aggregation, if this is the whole
                  step; the constant is then the width of a row
    reference     [...] float32 nats, of the reference policy, if config.kl; no gradient flows
    entropy       [...] float32 nats, of the policy's whole distribution, with gradient, if config.entropy

    Metrics are sums over tokens divided by `tokens`, so that those of micro-batches add up; `*_max` combine by max.
    PPO 1707.06347 Eq. 7; Dual-Clip 1912.09729 Eq. 5 (before the weight multiplies); clip-higher 2503.14476 Eq. 10;
    GSPO 2507.18071 Eq. 5-7; KL in the loss, GRPO 2402.03300 Eq. 4.
    """
    keep, width = mask.bool(), logprobs.shape[-1]
    advantages = advantages.expand_as(logprobs)[keep]
    logprobs, proximal, rollout = logprobs[keep], proximal[keep].detach(), rollout[keep].detach()
    tokens = max(float(keep.sum()) if tokens is None else tokens, 1.0)
    if counts is None:
        counts = keep.sum(-1).reshape(-1)
    trajectories = (float((counts > 0).sum()) if trajectories is None else trajectories) or 1.0
    if weights is None and config.aggregation != "token":
        weights = torch.from_numpy(token_weights(counts.cpu().numpy(), config.aggregation, width)).to(logprobs)

    def total(values: torch.Tensor) -> torch.Tensor:
        return values.sum() / tokens if weights is None else (weights.repeat_interleave(counts) * values).sum()

    log_ratio = logprobs - proximal
    moved = log_ratio
    if config.ratio == "sequence":
        moved = trajectory_means(log_ratio, counts).repeat_interleave(counts)
    ratio = exp(moved)
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    pessimistic = torch.maximum(plain, clipped)
    ceiling = -config.dual_clip * advantages
    capped = (advantages < 0) & (pessimistic > ceiling)
    losses = torch.where(capped, ceiling, pessimistic)

    mismatch = proximal - rollout
    away = mismatch
    if config.importance == "sequence":
        away = trajectory_sums(mismatch, counts).repeat_interleave(counts)
    weight = exp(away)
    truncated = weight > config.importance_cap
    weight = weight.clamp(max=config.importance_cap)
    loss = total((1.0 if config.importance == "none" else weight) * losses)

    means = {}
    if config.kl:
        means["kl"] = k3(_given(reference, "reference", config.kl)[keep].detach() - logprobs)
        loss = loss + config.kl * total(means["kl"])
    if config.entropy:
        loss = loss - config.entropy * total(_given(entropy, "entropy", config.entropy)[keep])

    with torch.no_grad():
        apart = logprobs - rollout if config.proximal == "rollout" else mismatch
        means |= {
            "ppo_kl": -log_ratio,
            "clip_fraction": clipped > plain,
            "dual_clip_fraction": capped,
            "tis_mean": weight,
            "tis_square": weight.square(),
            "tis_truncated": truncated,
            "mismatch_kl": k3(apart),  # its mean is KL(rollout ‖ trainer), and no token of it is negative
        }
        metrics = {name: values.float().sum() / tokens for name, values in means.items()}
        for name, values in (("tis_max", weight), ("mismatch_max", apart.abs())):
            metrics[name] = values.max() if values.numel() else loss.new_zeros(())
        if config.ratio == "sequence":
            metrics["sequence_clip_fraction"] = trajectory_means((clipped > plain).float(), counts).sum() / trajectories
    return loss, {"loss": loss.detach(), **metrics}


def _given(values: torch.Tensor | None, name: str, weight: float) -> torch.Tensor:
    if values is None:
        raise ValueError(f"the {name}'s weight in the loss is {weight:g}, but policy_loss was given no {name}")
    return values


def combine(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    """The metrics of one optimizer step from those of its micro-batches, on whatever rank they ran.

    Adds `ess`, the effective sample size of the importance weights as a share of the tokens: (Σw)² / (n Σw²).
    """
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            value = float(value)
            if name not in total:
                total[name] = value
            elif name.endswith("_max"):
                total[name] = float(np.maximum(total[name], value))  # which NaN outlasts
            else:
                total[name] += value
    square = total.pop("tis_square")
    total["ess"] = total["tis_mean"] ** 2 / square if square else 0.0
    return total
