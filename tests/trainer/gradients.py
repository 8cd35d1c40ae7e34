"""One update, by however many ranks run this file: `torchrun … gradients.py MODEL OUT BUDGETxMINIBATCHES …`."""

import sys
from pathlib import Path

import torch

from pipeline.config import Config, Trainer
from tests.trainer.ledger import trajectory
from trainer import model as policy
from trainer.ranks import joined
from trainer.update import Updater, make_optimizer


def compute(model: Path, *arguments, **options):
    """`compute_on` one rank."""
    with joined(Trainer()) as ranks:
        return compute_on(ranks, model, *arguments, **options)


def compute_on(
    ranks,
    model: Path,
    budget: int,
    minibatches: int = 1,
    share_rows: bool = True,
    temperature: float = 1.0,
    dtype: str = "float32",
    trajectories=None,
):
    """Metrics, the gradient before the last optimizer step and the weights after it: one update, on 13 trajectories."""
    config = Config.model_validate(
        {
            "run": {"name": "t"},
            "model": {"path": model},
            "data": {"tasks": {"chain_sum": {}}},
            "rollout": {"temperature": temperature},
            "optimizer": {"lr": 1e-3, "max_grad_norm": 1e9},
        }
    )
    # below the context's length, which run.toml may not be: then every trajectory is longer than the budget
    settings = config.trainer.model_copy(update={"token_budget": budget, "minibatches": minibatches})
    config = config.model_copy(update={"trainer": settings})
    trajectories = trajectories or [trajectory(seed, longest=100, version=seed % 2) for seed in range(13)]
    sharded = policy.shard(policy.load(model), ranks, dtype)
    updater = Updater(sharded, make_optimizer(sharded, config), config, ranks, share_rows)
    metrics = updater.update(updater.prepare(trajectories), version=2)
    named = dict(sharded.named_parameters())
    gradients = {name: p.grad.full_tensor() for name, p in named.items()}
    weights = {name: p.detach().full_tensor() for name, p in named.items()}
    return metrics, gradients, weights


if __name__ == "__main__":
    model, out, *cases = sys.argv[1:]
    with joined(Trainer()) as ranks:
        for case in cases:
            budget, minibatches = map(int, case.split("x"))
            metrics, gradients, weights = compute_on(ranks, Path(model), budget, minibatches)
            if ranks.first:
                saved = {"metrics": metrics, "gradients": gradients, "weights": weights}
                torch.save(saved, Path(out) / f"{case}.pt")
