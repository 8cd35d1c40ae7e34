"""One update, by however many ranks run this file: `torchrun … gradients.py MODEL OUT OPTIONS.json …`."""

import json
import sys
from pathlib import Path
from unittest.mock import patch

import torch

from pipeline.config import Config, Trainer
from tests.trainer.ledger import trajectory
from tests.trainer.poison import batch, poison
from trainer import head, resume
from trainer.packing import Layout
from trainer.ranks import joined
from trainer.update import Updater


def compute(model: Path, *arguments, **options):
    """`compute_on` one rank."""
    with joined(Trainer()) as ranks:
        return compute_on(ranks, model, *arguments, **options)


def settings(
    model: Path,
    budget: int,
    minibatches: int = 1,
    temperature: float = 1.0,
    dtype: str = "float32",
    loss: dict | None = None,
    advantage: dict | None = None,
    trainer: dict | None = None,
    optimizer: dict | None = None,
) -> Config:
    config = Config.model_validate(
        {
            "run": {"name": "t"},
            "model": {"path": model, "dtype": dtype},
            "data": {"tasks": {"chain_sum": {}}},
            "rollout": {"temperature": temperature},
            # eps: the first step follows the sign of the gradient, also where it is nothing but rounding
            "optimizer": {"lr": 1e-3, "max_grad_norm": 1e9, "eps": 1e-4} | (optimizer or {}),
            "loss": loss or {},
            "advantage": advantage or {},
            "trainer": trainer or {},
        }
    )
    # below the context's length, which run.toml may not be: then every trajectory is longer than the budget
    cut = config.trainer.model_copy(update={"token_budget": budget, "minibatches": minibatches})
    return config.model_copy(update={"trainer": cut})


def make_updater(ranks, config: Config, layout: Layout | None = None) -> Updater:
    updater = resume.make_updater(config.model.path, config, ranks)
    updater.layout = layout or updater.layout
    return updater


def compute_on(
    ranks,
    model: Path,
    budget: int,
    minibatches: int = 1,
    layout: Layout | None = None,
    trajectories=None,
    updates: int = 1,
    logits: int = 10_000,
    poisoned: tuple[int, ...] = (),
    **options,
):
    """Metrics, the gradient before the last optimizer step and the weights after it: of the last of so many updates,
    all on the same 13 trajectories, with so many rows of logits at a time; poisoned: those that NaN is computed of;
    options: see `settings`.
    """
    trajectories = trajectories or [trajectory(seed, longest=100, version=seed % 2) for seed in range(13)]
    updater = make_updater(ranks, settings(model, budget, minibatches, **options), layout)
    if poisoned:
        trajectories = batch(*poisoned)
        poison(updater.model)
    with patch.dict(head.CELLS, cpu=logits * 320):
        for _ in range(updates):
            metrics = updater.update(updater.prepare(trajectories), version=2)
    named = dict(updater.model.named_parameters())
    gradients = {name: p.grad.full_tensor() for name, p in named.items()}
    weights = {name: p.detach().full_tensor() for name, p in named.items()}
    return metrics, gradients, weights


def distance(ours, expected) -> float:
    """‖ours - expected‖ / ‖expected‖, of tensors by name."""
    flat = [torch.cat([tensors[name].flatten() for name in sorted(expected)]) for tensors in (ours, expected)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


if __name__ == "__main__":
    model, out, *cases = sys.argv[1:]
    with joined(Trainer()) as ranks:
        for number, case in enumerate(cases):
            metrics, gradients, weights = compute_on(ranks, Path(model), **json.loads(case))
            if ranks.first:
                saved = {"metrics": metrics, "gradients": gradients, "weights": weights}
                torch.save(saved, Path(out) / f"{number}.pt")
