"""One optimizer step over the micro-batches of all ranks; or none, if its gradient is not finite.

    micro-batches ──loss, backward──▶ gradient ─▶ its norm, in float32, over all shards ─▶ finite: clip, AdamW
                                                                                    └────▶ not: skipped, with its cause

A step that is skipped leaves weights, moments and their count as they were; the next ones go on. Only a whole row of
them ends the run. How long the row is belongs to a checkpoint, so that a resume does not begin to count anew.
"""

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from pipeline.config import Config
from pipeline.trajectory import Trajectory
from trainer.batch import TrainingFailed
from trainer.loss import combine
from trainer.not_finite import Values, cause
from trainer.out_of_memory import advising
from trainer.packing import MicroBatch
from trainer.ranks import Ranks
from trainer.schedule import learning_rate
from trainer.sharding import accumulated

log = logging.getLogger(__name__)

Proximal = torch.Tensor | None


def make_optimizer(model, config: Config) -> torch.optim.AdamW:
    """With its state, as before a first step: a checkpoint may come before any step was made."""
    settings = config.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,  # of sharded parameters, eight times faster on a CPU
    )
    for parameter in model.parameters():
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.zeros((), device=parameter.device)} | moments
    return optimizer


class Stepper:
    """Makes the optimizer steps of a run. skipped_in_a_row: the last ones that were skipped."""

    def __init__(self, model, optimizer: torch.optim.Optimizer, config: Config, ranks: Ranks):
        self._model, self._optimizer, self._config, self._ranks = model, optimizer, config, ranks
        self.skipped_in_a_row = 0

    def set_learning_rate(self, version: int) -> float:
        """Of all steps of update `version`."""
        s = self._config.optimizer
        rate = learning_rate(version + 1, s.lr, s.schedule, s.warm_up, s.decay_steps, s.min_lr)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def step(
        self,
        version: int,
        own: list[tuple[MicroBatch, Proximal]],
        loss_of: Callable[[MicroBatch, Proximal], tuple[torch.Tensor, dict[str, torch.Tensor]]],
        values_of: Callable[[MicroBatch, Proximal], Values],
        trajectories: Sequence[Trajectory],
    ) -> dict[str, float]:
        """The step's metrics; all ranks call it.

        own           this rank's micro-batches, each with its log-probs at the start of the update
        loss_of       loss and metrics of one
        values_of     what its loss is made of, asked for if the step has no finite gradient
        trajectories  of the update, by which the cause is named

        Raises TrainingFailed if trainer.max_skipped steps in a row were skipped and this one would have to be, too.
        """
        config, device = self._config, self._ranks.device
        self._optimizer.zero_grad()
        parts = []
        for micro, proximal in accumulated(self._model, own, config.trainer.gather_every):
            with advising("a micro-batch", config, device, micro):
                loss, metrics = loss_of(micro, proximal)
                loss.backward()
            parts.append(metrics)
        total = get_total_norm([p.grad for p in self._model.parameters() if p.grad is not None])
        norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
        everyone = self._ranks.gather((norm, [_numbers(part) for part in parts]))
        norm = everyone[0][0]  # decides for all ranks, lest a last bit parts them
        metrics = combine(part for _, parts in everyone for part in parts) | {"grad_norm": norm}
        if np.isfinite([norm, metrics["loss"]]).all():
            clip_grads_with_norm_(self._model.parameters(), config.optimizer.max_grad_norm, total)
            with advising("the optimizer's step", config, device):
                self._optimizer.step()
            self.skipped_in_a_row = 0
            return metrics | {"skipped": 0}
        values = [(micro, values_of(micro, proximal)) for micro, proximal in own]
        self._model.reshard()  # which otherwise a backward pass does; only shards have their gradients
        self._skip(version, cause(metrics["loss"], norm, values, trajectories, self._model, self._ranks))
        return metrics | {"skipped": 1}

    def _skip(self, version: int, cause: str) -> None:
        most, said = self._config.trainer.max_skipped, f"update {version}: the gradient is not finite: {cause}"
        if self.skipped_in_a_row >= most:
            raise TrainingFailed(
                f"{said}. The {self.skipped_in_a_row} optimizer steps before were skipped for such a cause "
                f"(trainer.max_skipped = {most}), and this one is not made either; go on from the newest "
                f"checkpoint with a lower optimizer.lr (now {self._config.optimizer.lr:g}) or optimizer.max_grad_norm: "
                f"headrace fork {self._config.run.name} optimizer.lr=…"
            )
        self.skipped_in_a_row += 1
        if self._ranks.first:
            row = f"{self.skipped_in_a_row} in a row, of at most trainer.max_skipped = {most}"
            log.warning("%s. This optimizer step is skipped: %s", said, row)


def of_steps(steps: list[dict[str, float]]) -> dict[str, float]:
    """The metrics of an update from those of its optimizer steps; what is finite in none of them is left out.

    `skipped` is their number; the others are means, `*_max` the largest.
    """
    found = {name: [s[name] for s in steps if np.isfinite(s[name])] for name in steps[0]}
    return {name: _together(name, values) for name, values in found.items() if values}


def _together(name: str, values: list[float]) -> float:
    if name == "skipped":
        return sum(values)
    return max(values) if name.endswith("_max") else sum(values) / len(values)


def _numbers(metrics: dict[str, torch.Tensor]) -> dict[str, float]:
    """All of them in one transfer from the device."""
    return dict(zip(metrics, torch.stack([value.float() for value in metrics.values()]).tolist(), strict=True))
