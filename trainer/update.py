"""One update: from the trajectories of a buffer to new weights.

    prepare   rewards, values, L ──estimate──▶ Ã, centred over the whole update
              trajectories ──K minibatches──▶ plan ──▶ pack ──▶ micro-batches of this rank
    update    each micro-batch ──▶ loss / (ΣL / K), backward      ┐ per minibatch,
              clip the global gradient norm ──▶ AdamW             ┘ one step each

Every rank has all trajectories and computes its share; gradients are summed by FSDP2, metrics by `combine`. Nothing
depends on how the trajectories were packed or shared out.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from advantage import estimate
from advantage.metrics import actor_center, brier
from pipeline.config import Config
from pipeline.errors import HeadraceError
from pipeline.trajectory import Trajectory
from trainer.loss import combine, policy_loss
from trainer.model import action_logprobs
from trainer.packing import MicroBatch, pack, plan
from trainer.ranks import Ranks


class TrainingFailed(HeadraceError):
    """Training cannot go on; what was trained so far is in the newest checkpoint."""

    code = "TRAINING"


def make_optimizer(model, config: Config) -> torch.optim.AdamW:
    settings = config.optimizer
    return torch.optim.AdamW(
        model.parameters(),
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,  # of sharded parameters, eight times faster on a CPU
    )


@dataclass(frozen=True)
class Prepared:
    """The batch of one update, and all of it that the policy does not decide.

    counts       [n] action tokens of each trajectory
    advantages   [n] float64
    minibatches  for each optimizer step, this rank's micro-batches
    """

    trajectories: list[Trajectory]
    counts: np.ndarray
    advantages: np.ndarray
    minibatches: list[list[MicroBatch]]


class Updater:
    """Model and optimizer of one run. `share_rows`: see trainer/model.py."""

    def __init__(self, model, optimizer: torch.optim.Optimizer, config: Config, ranks: Ranks, share_rows: bool):
        self.model, self.optimizer, self.config = model, optimizer, config
        self.ranks, self.share_rows = ranks, share_rows

    def prepare(self, trajectories: list[Trajectory]) -> Prepared:
        """Advantages and this rank's packed rows. Any thread may call it, also while another one is in `update`."""
        counts = np.array([np.count_nonzero(t.loss_mask[1:]) for t in trajectories])
        everything, steps = range(len(trajectories)), self.config.trainer.minibatches
        minibatches = [
            # those without action tokens add nothing
            self._micro_batches(trajectories, [i for i in everything[k::steps] if counts[i]])
            for k in range(steps)
        ]
        return Prepared(trajectories, counts, advantages_of(trajectories, counts, self.config), minibatches)

    def update(self, batch: Prepared, version: int) -> dict[str, float]:
        """Train on one buffer, `minibatches` optimizer steps; version: of the policy before it.

        Returns the loss's metrics (mean over the update's action tokens) and those of `describe`.
        Raises TrainingFailed, before the optimizer's step, if a gradient is not finite.
        """
        minibatches = [[micro.to(self.ranks.device) for micro in own] for own in batch.minibatches]
        tokens = batch.counts.sum() / len(minibatches)  # one divisor for all steps keeps ΣL Ã = 0 the update's measure
        proximal = self._proximal(minibatches)
        steps = [
            self._step(own, prox, batch.advantages, tokens, version)
            for own, prox in zip(minibatches, proximal, strict=True)
        ]
        metrics = {
            name: max(s[name] for s in steps) if name.endswith("_max") else sum(s[name] for s in steps) / len(steps)
            for name in steps[0]
        }
        described = describe(batch.trajectories, batch.counts, batch.advantages, version)
        return metrics | described | {"lr": self.config.optimizer.lr}

    def _micro_batches(self, trajectories: Sequence[Trajectory], members: Sequence[int]) -> list[MicroBatch]:
        """This rank's share of the trajectories `members`."""
        lengths = [len(trajectories[i].tokens) for i in members]
        own = plan(lengths, self.config.trainer.token_budget, self.ranks.size, self.share_rows)[self.ranks.rank]
        named = ([[members[i] for i in row] for row in rows] for rows in own)
        return [pack(rows, trajectories) for rows in named]

    def _proximal(self, minibatches: list[list[MicroBatch]]) -> list[list[torch.Tensor | None]]:
        """Per micro-batch, [n] log-probs of the policy at the start of the update; None: those of its own forward."""
        if self.config.loss.proximal == "rollout":
            return [[micro.rollout for micro in own] for own in minibatches]
        if len(minibatches) == 1:
            return [[None] * len(own) for own in minibatches]
        with torch.no_grad():
            return [[self._logprobs(micro)[0] for micro in own] for own in minibatches]

    def _step(self, own, proximal, advantages: np.ndarray, tokens: float, version: int) -> dict[str, float]:
        """One optimizer step over the micro-batches of all ranks, of which `own` are this one's."""
        self.optimizer.zero_grad()
        parts = []
        for micro, prox in zip(own, proximal, strict=True):
            logprobs, entropy = self._logprobs(micro)
            prox = logprobs.detach() if prox is None else prox
            weights = torch.from_numpy(np.repeat(advantages[micro.members], micro.counts)).to(logprobs)
            loss, metrics = policy_loss(
                logprobs,
                prox,
                micro.rollout,
                weights,
                torch.ones_like(logprobs),
                self.config.loss,
                tokens,
            )
            loss.backward()
            metrics["entropy"] = entropy.sum() / max(tokens, 1.0)
            parts.append({name: float(value) for name, value in metrics.items()})
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimizer.max_grad_norm)
        norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        metrics = combine(part for rank in self.ranks.gather(parts) for part in rank) | {"grad_norm": norm}
        if not np.isfinite(norm):
            cause = (
                f"the loss is {metrics['loss']} already, log-probs of the model are not finite"
                if not np.isfinite(metrics["loss"])
                else f"the loss is finite ({metrics['loss']:.4g}), the backward pass overflowed"
            )
            raise TrainingFailed(
                f"update {version}: the gradient's norm is {norm}: {cause}. Nothing of this update was applied; lower "
                f"optimizer.lr (now {self.config.optimizer.lr:g}) or optimizer.max_grad_norm and start again"
            )
        self.optimizer.step()
        return metrics

    def _logprobs(self, micro: MicroBatch):
        return action_logprobs(self.model, micro, self.config.rollout.temperature)


def advantages_of(trajectories: Sequence[Trajectory], counts: np.ndarray, config: Config) -> np.ndarray:
    """[n] float64: one advantage a trajectory, over the whole batch of the update; counts: [n] action tokens."""
    return estimate(
        config.advantage.algorithm,
        [t.reward for t in trajectories],
        values=[t.value for t in trajectories],
        action_tokens=counts,
        groups=[t.entry for t in trajectories],
        normalization=config.advantage.normalization,
    )


def describe(trajectories: Sequence[Trajectory], counts: np.ndarray, advantages: np.ndarray, version: int) -> dict:
    """What the batch was like: rewards, lengths, staleness in updates, calibration of the values."""
    rewards = np.array([t.reward for t in trajectories])
    outcomes = [t.outcome for t in trajectories]
    lengths = [len(t.tokens) for t in trajectories]
    staleness = Counter(version - t.version for t in trajectories)
    return {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "success": float(np.mean(outcomes)),
        "advantage_center": actor_center(advantages, counts),
        "brier": brier([t.value for t in trajectories], outcomes),
        "staleness": {str(age): staleness[age] for age in sorted(staleness)},
        "trajectories": len(trajectories),
        "action_tokens": int(counts.sum()),
        "tokens": sum(lengths),
        "mean_length": float(np.mean(lengths)),
        # a turn that engines changed in has several segments; who counts turns has them in the metrics
        "turns": float(np.mean([t.metrics.get("turns", len(t.segments)) for t in trajectories])),
    }
