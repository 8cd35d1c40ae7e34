"""One update: from the trajectories of a buffer to new weights.

    prepare   rewards, values, L ──estimate──▶ Ã, centred over the whole update
              trajectories ──K minibatches──▶ plan ──▶ pack ──▶ micro-batches of this rank
    update    (rejection: log-probs ──▶ fewer action tokens ──estimate──▶ Ã)
              each micro-batch ──▶ loss / (ΣL / K), backward      ┐ per minibatch,
              clip the global gradient norm ──▶ AdamW             ┘ one step each
              (reference "ewma": one step after the policy)

Every rank has all trajectories and computes its share; gradients are summed by FSDP2, metrics by `combine`. Nothing
depends on how the trajectories were packed or shared out.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from pipeline.config import Config
from pipeline.trajectory import Trajectory
from trainer.aggregation import Divisors, divisors_of
from trainer.batch import Prepared, TrainingFailed, advantages_of, describe
from trainer.loss import combine, policy_loss
from trainer.model import action_logprobs
from trainer.packing import MicroBatch, pack, plan
from trainer.ranks import Ranks
from trainer.reference import follow
from trainer.rejection import rejected


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


class Updater:
    """Model and optimizer of one run. `share_rows`: see trainer/model.py; `reference`: see trainer/reference.py."""

    def __init__(
        self, model, optimizer: torch.optim.Optimizer, config: Config, ranks: Ranks, share_rows: bool, reference=None
    ):
        self.model, self.optimizer, self.config = model, optimizer, config
        self.ranks, self.share_rows, self.reference = ranks, share_rows, reference

    def prepare(self, trajectories: list[Trajectory]) -> Prepared:
        """Advantages and this rank's packed rows. Any thread may call it, also while another one is in `update`."""
        counts = np.array([np.count_nonzero(t.loss_mask[1:]) for t in trajectories])
        everything, steps = range(len(trajectories)), self.config.trainer.minibatches
        minibatches = [
            # those without action tokens add nothing
            self._micro_batches(trajectories, [i for i in everything[k::steps] if counts[i]])
            for k in range(steps)
        ]
        final = self.config.loss.rejection == "none"
        advantages = advantages_of(trajectories, counts, self.config) if final else None
        return Prepared(trajectories, counts, advantages, minibatches)

    def update(self, batch: Prepared, version: int) -> dict[str, float]:
        """Train on one buffer, `minibatches` optimizer steps; version: of the policy before it.

        Returns the loss's metrics (mean over the update's action tokens) and those of `describe`.
        Raises TrainingFailed, before the optimizer's step, if a gradient is not finite.
        """
        minibatches = [[micro.to(self.ranks.device) for micro in own] for own in batch.minibatches]
        proximal = self._proximal(minibatches)
        counts, advantages = batch.counts, batch.advantages
        if advantages is None:
            minibatches, proximal, counts = self._reject(minibatches, proximal, batch.counts)
            advantages = advantages_of(batch.trajectories, counts, self.config)
        divisors = divisors_of(counts, self.config)
        steps = [
            self._step(own, prox, advantages, divisors, version)
            for own, prox in zip(minibatches, proximal, strict=True)
        ]
        if self.reference is not None and self.config.loss.reference == "ewma":
            follow(self.reference, self.model, self.config.loss.reference_decay)
        metrics = {
            name: max(s[name] for s in steps) if name.endswith("_max") else sum(s[name] for s in steps) / len(steps)
            for name in steps[0]
        }
        if self.config.loss.rejection != "none":
            metrics |= rejection_metrics(batch.counts, counts)
        described = describe(batch.trajectories, counts, advantages, self.config, version)
        return metrics | described | {"lr": self.config.optimizer.lr}

    @torch.no_grad()
    def logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """[L] float32 nats of each trajectory's action tokens, of the policy as it is now; the same on every rank."""
        own = {}
        for micro in self._micro_batches(trajectories, range(len(trajectories))):
            found = self._logprobs(micro.to(self.ranks.device))[0].cpu()
            own |= {i: part.numpy() for i, part in zip(micro.members, found.split(micro.counts), strict=True)}
        self.model.reshard()  # which otherwise a backward pass does
        everyone = {i: part for rank in self.ranks.gather(own) for i, part in rank.items()}
        return [everyone[i] for i in range(len(trajectories))]

    def _micro_batches(self, trajectories: Sequence[Trajectory], members: Sequence[int]) -> list[MicroBatch]:
        """This rank's share of the trajectories `members`."""
        lengths = [len(trajectories[i].tokens) for i in members]
        own = plan(lengths, self.config.trainer.token_budget, self.ranks.size, self.share_rows)[self.ranks.rank]
        named = ([[members[i] for i in row] for row in rows] for rows in own)
        return [pack(rows, trajectories) for rows in named]

    def _proximal(self, minibatches: list[list[MicroBatch]]) -> list[list[torch.Tensor | None]]:
        """Per micro-batch, [n] log-probs of the policy at the start of the update; None: those of its own forward."""
        settings = self.config.loss
        if settings.proximal == "rollout":
            return [[micro.rollout for micro in own] for own in minibatches]
        if len(minibatches) == 1 and settings.rejection == "none":
            return [[None] * len(own) for own in minibatches]
        with torch.no_grad():
            return [[self._logprobs(micro)[0] for micro in own] for own in minibatches]

    def _reject(self, minibatches: list[list[MicroBatch]], proximal: list[list[torch.Tensor]], counts: np.ndarray):
        """Minibatches and log-probs without the tokens that trainer and engine disagree about, [n] those left."""
        settings = self.config.loss
        fewer, left, own_counts = [], [], {}
        for own, prox in zip(minibatches, proximal, strict=True):
            out = [rejected(p, m.rollout, self._counts(m), settings) for m, p in zip(own, prox, strict=True)]
            fewer.append([micro.without(o) for micro, o in zip(own, out, strict=True)])
            left.append([p[~o] for p, o in zip(prox, out, strict=True)])
            own_counts |= {
                i: count for micro in fewer[-1] for i, count in zip(micro.members, micro.counts, strict=True)
            }
        counts = np.zeros_like(counts)
        for found in self.ranks.gather(own_counts):
            counts[list(found)] = list(found.values())
        return fewer, left, counts

    def _step(self, own, proximal, advantages: np.ndarray, divisors: Divisors, version: int) -> dict[str, float]:
        """One optimizer step over the micro-batches of all ranks, of which `own` are this one's."""
        self.optimizer.zero_grad()
        parts = []
        for micro, prox in zip(own, proximal, strict=True):
            loss, metrics = self._loss(micro, prox, advantages, divisors)
            loss.backward()
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

    def _loss(self, micro: MicroBatch, proximal: torch.Tensor | None, advantages: np.ndarray, divisors: Divisors):
        """Loss of one micro-batch and its metrics."""
        settings, weights, reference = self.config.loss, divisors.weights, None
        if self.reference is not None:
            with torch.no_grad():
                reference, _ = action_logprobs(self.reference, micro, self.config.rollout.temperature)
        logprobs, entropy = self._logprobs(micro)
        loss, metrics = policy_loss(
            logprobs,
            logprobs.detach() if proximal is None else proximal,
            micro.rollout,
            torch.from_numpy(np.repeat(advantages[micro.members], micro.counts)).to(logprobs),
            torch.ones_like(logprobs),
            settings,
            divisors.tokens,
            trajectories=divisors.trajectories,
            counts=self._counts(micro),
            weights=None if weights is None else torch.from_numpy(weights[micro.members]).to(logprobs),
            reference=reference,
            entropy=entropy,
        )
        metrics["entropy"] = entropy.detach().sum() / max(divisors.tokens, 1.0)
        return loss, metrics

    def _counts(self, micro: MicroBatch) -> torch.Tensor:
        return torch.tensor(micro.counts, dtype=torch.int64, device=self.ranks.device)

    def _logprobs(self, micro: MicroBatch):
        entropy_gradient = self.config.loss.entropy > 0
        return action_logprobs(self.model, micro, self.config.rollout.temperature, entropy_gradient)


def rejection_metrics(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    """Shares of the action tokens, and of the trajectories that had some, which the loss leaves out; counts: [n]."""
    had = before > 0
    return {
        "rejected_fraction": float(1 - after.sum() / max(before.sum(), 1)),
        "rejected_trajectories": float((after[had] == 0).sum() / max(had.sum(), 1)),
    }
