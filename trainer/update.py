"""One update: from the trajectories of a buffer to new weights.

    prepare   rewards, values, L ──estimate──▶ Ã, centred over the whole update
              trajectories ──K minibatches──▶ plan ──▶ pack ──▶ micro-batches of this rank
    update    (rejection: log-probs ──▶ fewer action tokens ──estimate──▶ Ã)
              each micro-batch ──▶ loss / (ΣL / K), backward      ┐ per minibatch,
              clip the global gradient norm ──▶ AdamW             ┘ one step each, at the update's learning rate
              not finite: the step is skipped, with its cause
              (reference "ewma": one step after the policy, if that has moved)

Every rank has all trajectories and computes its share; gradients are summed by FSDP2, metrics by `combine`. Nothing
depends on how the trajectories were packed or shared out.

Nothing here is random: the same batches on as many ranks give the same bits on a CPU. On GPUs they need not: the
backward passes of attention, gather and index_select add with atomics, in any order, and cuBLAS may split a sum.
(torch.use_deterministic_algorithms, CUBLAS_WORKSPACE_CONFIG=:4096:8 forbid both, at a price.) There a resume is exact
in what it begins from, and equal to rounding from then on.
"""

from collections.abc import Sequence

import numpy as np
import torch

from pipeline.config import Config
from pipeline.trajectory import Trajectory
from trainer.aggregation import Divisors, divisors_of
from trainer.batch import Prepared, advantages_of, describe
from trainer.loss import policy_loss
from trainer.mismatch import MismatchAlarm
from trainer.model import action_logprobs
from trainer.not_finite import Values
from trainer.out_of_memory import advising
from trainer.packing import Layout, MicroBatch, pack, plan
from trainer.ranks import Ranks
from trainer.reference import follow
from trainer.rejection import mismatch, rejected, rejection_metrics
from trainer.step import Proximal, Stepper, of_steps
from trainer.throughput import costs_of


class Updater:
    """Model and optimizer of one run. `layout`: see trainer/packing.py; `reference`: see trainer/reference.py."""

    def __init__(
        self, model, optimizer: torch.optim.Optimizer, config: Config, ranks: Ranks, layout: Layout, reference=None
    ):
        self.model, self.optimizer, self.config = model, optimizer, config
        self.ranks, self.layout, self.reference = ranks, layout, reference
        self.stepper = Stepper(model, optimizer, config, ranks)
        self._alarm, self._costs = MismatchAlarm(config.trainer.mismatch_alarm, ranks), costs_of(model)

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

        Returns the loss's metrics (mean over the update's action tokens), without those that are not finite, and those
        of `describe`. Raises TrainingFailed if trainer.max_skipped optimizer steps in a row were skipped before one
        more gradient is not finite, or there is not enough memory.
        """
        rate = self.stepper.set_learning_rate(version)
        minibatches = [[micro.to(self.ranks.device) for micro in own] for own in batch.minibatches]
        proximal = self._proximal(minibatches)
        counts, advantages, rejection = batch.counts, batch.advantages, {}
        if advantages is None:
            minibatches, proximal, counts, rejection = self._reject(minibatches, proximal, batch.counts)
            advantages = advantages_of(batch.trajectories, counts, self.config)
        divisors = divisors_of(counts, self.config)
        metrics = of_steps(
            [
                self.stepper.step(
                    version,
                    list(zip(own, prox, strict=True)),
                    lambda micro, prox: self._loss(micro, prox, advantages, divisors),
                    self._values,
                    batch.trajectories,
                )
                for own, prox in zip(minibatches, proximal, strict=True)
            ]
        )
        if self.reference is not None:
            self.reference.reshard()  # which no backward pass does
            if self.config.loss.reference == "ewma" and metrics["skipped"] < len(minibatches):
                follow(self.reference, self.model, self.config.loss.reference_decay)
        metrics |= rejection
        if "mismatch_kl" in metrics:
            alarm = self._alarm.look(version, metrics["mismatch_kl"], batch.trajectories, self.logprobs)
            metrics["mismatch_alarm"] = alarm
        described = describe(batch.trajectories, counts, advantages, self.config, version)
        return metrics | described | {"lr": rate, "flops": self._flops(batch)}

    def _flops(self, batch: Prepared) -> float:
        """What the update has computed on all ranks: trainer/throughput.py."""
        settings, lengths = self.config.loss, [len(t.tokens) for t in batch.trajectories]
        before = settings.proximal == "recompute" and (len(batch.minibatches) > 1 or settings.rejection != "none")
        passes = 3 + before + (self.reference is not None)
        return passes * self._costs.forward(lengths, int(batch.counts.sum()))

    @torch.no_grad()
    def logprobs(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """[L] float32 nats of each trajectory's action tokens, of the policy as it is now; the same on every rank."""
        own = {}
        for micro in self._micro_batches(trajectories, range(len(trajectories))):
            with advising("log-probs", self.config, self.ranks.device, micro):
                found = self._logprobs(micro.to(self.ranks.device))[0].cpu()
            own |= {i: part.numpy() for i, part in zip(micro.members, found.split(micro.counts), strict=True)}
        self.model.reshard()  # which otherwise a backward pass does
        everyone = {i: part for rank in self.ranks.gather(own) for i, part in rank.items()}
        return [everyone[i] for i in range(len(trajectories))]

    def _micro_batches(self, trajectories: Sequence[Trajectory], members: Sequence[int]) -> list[MicroBatch]:
        """This rank's share of the trajectories `members`."""
        lengths = [len(trajectories[i].tokens) for i in members]
        costs = [self._costs.forward([len(t.tokens)], t.action_tokens) for t in (trajectories[i] for i in members)]
        shares = plan(lengths, self.config.trainer.token_budget, self.ranks.size, self.layout, costs)
        named = ([[members[i] for i in row] for row in rows] for rows in shares[self.ranks.rank])
        return [pack(rows, trajectories) for rows in named]

    def _proximal(self, minibatches: list[list[MicroBatch]]) -> list[list[Proximal]]:
        """Per micro-batch, [n] log-probs of the policy at the start of the update; None: those of its own forward."""
        settings = self.config.loss
        if settings.proximal == "rollout":
            return [[micro.rollout for micro in own] for own in minibatches]
        if len(minibatches) == 1 and settings.rejection == "none":
            return [[None] * len(own) for own in minibatches]
        found = []
        for own in minibatches:
            found.append([])
            for micro in own:
                with torch.no_grad(), advising("log-probs", self.config, self.ranks.device, micro):
                    found[-1].append(self._logprobs(micro)[0])
        return found

    def _reject(self, minibatches: list[list[MicroBatch]], proximal: list[list[torch.Tensor]], counts: np.ndarray):
        """Minibatches and log-probs without the tokens that trainer and engine disagree about, [n] those left, and the
        metrics of both."""
        settings = self.config.loss
        fewer, left, own_counts, apart = [], [], {}, []
        for own, prox in zip(minibatches, proximal, strict=True):
            apart += [mismatch(p, m.rollout) for m, p in zip(own, prox, strict=True)]
            out = [rejected(p, m.rollout, self._counts(m), settings) for m, p in zip(own, prox, strict=True)]
            fewer.append([micro.without(o) for micro, o in zip(own, out, strict=True)])
            left.append([p[~o] for p, o in zip(prox, out, strict=True)])
            own_counts |= {
                i: count for micro in fewer[-1] for i, count in zip(micro.members, micro.counts, strict=True)
            }
        before, counts = counts, np.zeros_like(counts)
        everyone = self.ranks.gather((own_counts, apart))
        for found, _ in everyone:
            counts[list(found)] = list(found.values())
        return fewer, left, counts, rejection_metrics(before, counts, [part for _, parts in everyone for part in parts])

    def _values(self, micro: MicroBatch, proximal: Proximal) -> Values:
        """What the loss is made of, in the order in which it is computed, once more."""
        values = {"log-probs of the engines": micro.rollout}
        if proximal is not None:
            values["log-probs of the policy at the start of the update"] = proximal
        with torch.no_grad():
            if self.reference is not None:
                values["log-probs of the reference"], _ = self._logprobs(micro, self.reference)
            values["log-probs of the policy"], values["entropies of the policy"] = self._logprobs(micro)
        return values

    def _loss(self, micro: MicroBatch, proximal: Proximal, advantages: np.ndarray, divisors: Divisors):
        """Loss of one micro-batch and its metrics."""
        settings, weights, reference = self.config.loss, divisors.weights, None
        if self.reference is not None:
            with torch.no_grad():
                reference, _ = self._logprobs(micro, self.reference)
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

    def _logprobs(self, micro: MicroBatch, model=None):
        """Of the policy, or of another model."""
        entropy_gradient = model is None and self.config.loss.entropy > 0
        return action_logprobs(model or self.model, micro, self.config.rollout.temperature, entropy_gradient)
