"""The loss of one update: PPO with clip-higher and Dual-Clip, weighted by a truncated importance ratio.

    r = exp(log π - log π_prox)          how far this step has moved            clipped to [1 - low, 1 + high]
    w = min(exp(log π_prox - log π_rollout), cap)      how far the engines' policy was away, no gradient

    ℓ = max(-Ã r, -Ã clip(r)),   for Ã < 0 at most -c Ã         loss = Σ w ℓ over action tokens / tokens

`tokens` counts the loss tokens of the *whole* optimizer step, all ranks and micro-batches, so the losses and metrics of
micro-batches simply add up, and the measure is the one under which the advantages were centred (ΣL Ã = 0).
"""

from collections.abc import Iterable

import torch

from pipeline.config import Loss

MAX_LOG_RATIO = 20.0  # nats; exp beyond it would overflow or vanish


def policy_loss(
    logprobs: torch.Tensor,
    proximal: torch.Tensor,
    rollout: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    config: Loss,
    tokens: float | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Token-mean actor loss and its metrics; design: algorithms.md, Loss.

    logprobs    [...] float32 nats, of the policy in training, with gradient
    proximal    [...] float32 nats, of the policy at the start of the update (or the rollout's); no gradient flows
    rollout     [...] float32 nats, as each segment's own engine reported them
    advantages  [...] one per token, or broadcastable
    mask        [...] 1: action token that counts; whatever the others hold is never looked at
    config      clip_low, clip_high, dual_clip, importance, importance_cap
    tokens      the denominator; None: the mask's own sum, right if this is the whole step

    Metrics are sums over tokens divided by `tokens`, so that those of micro-batches add up; `*_max` combine by max.
    PPO 1707.06347 Eq. 7; Dual-Clip 1912.09729 Eq. 5 (before the weight multiplies); clip-higher 2503.14476 Eq. 10.
    """
    keep = mask.bool()
    advantages = advantages.expand_as(logprobs)[keep]
    logprobs, proximal, rollout = logprobs[keep], proximal[keep].detach(), rollout[keep].detach()
    tokens = max(float(keep.sum()) if tokens is None else tokens, 1.0)

    log_ratio = logprobs - proximal
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    pessimistic = torch.maximum(plain, clipped)
    ceiling = -config.dual_clip * advantages
    capped = (advantages < 0) & (pessimistic > ceiling)
    losses = torch.where(capped, ceiling, pessimistic)

    mismatch = proximal - rollout
    weight = mismatch.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    truncated = weight > config.importance_cap
    weight = weight.clamp(max=config.importance_cap)
    loss = ((weight if config.importance == "token" else 1.0) * losses).sum() / tokens

    with torch.no_grad():
        means = {
            "ppo_kl": -log_ratio,
            "clip_fraction": clipped > plain,
            "dual_clip_fraction": capped,
            "tis_mean": weight,
            "tis_square": weight.square(),
            "tis_truncated": truncated,
            # k3 of Schulman: its mean is KL(rollout ‖ trainer), and no token of it is negative
            "mismatch_kl": mismatch.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() - 1 - mismatch,
        }
        metrics = {name: values.float().sum() / tokens for name, values in means.items()}
        for name, values in (("tis_max", weight), ("mismatch_max", mismatch.abs())):
            metrics[name] = values.max() if values.numel() else loss.new_zeros(())
    return loss, {"loss": loss.detach(), **metrics}


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
                total[name] = max(total[name], value)
            else:
                total[name] += value
    square = total.pop("tis_square")
    total["ess"] = total["tis_mean"] ** 2 / square if square else 0.0
    return total
