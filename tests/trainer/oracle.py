"""What the papers say of one update's loss, as plain loops over trajectories and their tokens, in float64.

Numbers are torch scalars only so that autograd can differentiate the result.
"""

from dataclasses import dataclass

import torch

from pipeline.config import Loss


@dataclass
class Sample:
    """One trajectory. [T] each; what they hold where `mask` is 0 belongs to nobody."""

    logprobs: torch.Tensor
    proximal: torch.Tensor
    rollout: torch.Tensor
    reference: torch.Tensor
    entropy: torch.Tensor
    mask: list[int]
    advantage: float

    @property
    def actions(self) -> list[int]:
        return [t for t, counts in enumerate(self.mask) if counts]


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def clamp(value, low, high):
    return min(max(value, number(low)), number(high))


def average(values):
    return sum(values) / len(values)


def reject(samples: list[Sample], config: Loss) -> list[Sample]:
    """The same trajectories with 0 in the mask of what trainer and engine disagree about."""
    low, high = (
        bound if bound is not None else none
        for bound, none in ((config.rejection_low, -1e9), (config.rejection_high, 1e9))
    )
    left = []
    for s in samples:
        measured = {}
        for t in s.actions:
            q, p = s.rollout[t].exp().item(), s.proximal[t].exp().item()
            x = number(p / q).log().item()
            measured[t] = {"k1": -x, "k2": x * x / 2, "k3": p / q - 1 - x}[config.rejection_measure]
        if config.rejection == "sequence" and measured:
            measured = dict.fromkeys(measured, average(list(measured.values())))
        mask = [int(t in measured and low <= measured[t] <= high) for t in range(len(s.mask))]
        left.append(Sample(s.logprobs, s.proximal, s.rollout, s.reference, s.entropy, mask, s.advantage))
    return left


def loss_of(samples: list[Sample], config: Loss, longest: int, whole: list[Sample] | None = None, steps: int = 1):
    """The loss of the optimizer step on `samples`, one of `steps` on the update `whole`; longest: C of "constant"."""
    whole = whole or samples
    tokens = sum(len(s.actions) for s in whole)
    speaking = sum(1 for s in whole if s.actions)
    loss = number(0.0)
    for s in samples:
        moved = [s.logprobs[t] - s.proximal[t] for t in s.actions]
        away = [(s.proximal[t] - s.rollout[t]).detach() for t in s.actions]
        for k, t in enumerate(s.actions):
            r = clamp(moved[k] if config.ratio == "token" else average(moved), -20, 20).exp()
            objective = min(r * s.advantage, clamp(r, 1 - config.clip_low, 1 + config.clip_high) * s.advantage)
            if s.advantage < 0:
                objective = max(objective, number(config.dual_clip * s.advantage))
            if config.importance != "none":
                w = clamp(away[k] if config.importance == "token" else sum(away), -20, 20).exp()
                objective = min(w, number(config.importance_cap)) * objective
            if config.kl:
                x = s.reference[t] - s.logprobs[t]
                objective = objective - config.kl * (x.exp() - x - 1)
            if config.entropy:
                objective = objective + config.entropy * s.entropy[t]
            share = {
                "token": 1 / tokens,
                "sequence": 1 / (speaking * len(s.actions)),
                "constant": 1 / (len(whole) * longest),
            }[config.aggregation]
            loss = loss - steps * share * objective
    return loss
