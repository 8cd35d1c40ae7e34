"""What four ranks make of models: `torchrun --nproc-per-node 4 layouts.py OUT MODEL OTHERS …`

One update of MODEL under many layouts, with a checkpoint and a publication; and how the weights of OTHERS are read.
"""

import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from pipeline.config import Trainer
from tests.trainer import gradients
from tests.trainer.ledger import trajectory
from trainer import checkpoint
from trainer.initial_weights import fill
from trainer.publish import write_weights
from trainer.ranks import Ranks, joined, mesh_of
from trainer.resume import make_updater
from trainer.sharding import sharded

BUDGET = 150  # tokens: several micro-batches on each of four ranks
LAYOUTS = {
    "four shards": {},
    "two copies of two shards": {"replicas": 2},
    "gathered for each micro-batch": {"gather_every": "micro_batch"},
    "copies that wait in the CPU's memory": {"replicas": 2, "offload": True},  # as all do here, but by FSDP2's policy
    "computed in bfloat16": {"dtype": "bfloat16"},
    "layers computed twice": {"activation_checkpointing": True},
}


def trajectories():
    return [trajectory(seed, longest=100, version=seed % 2) for seed in range(21)]


def setting(model: Path, layout: dict):
    config = gradients.settings(model, BUDGET, dtype=layout.get("dtype", "float32"))
    trainer = {name: value for name, value in layout.items() if name != "dtype"}
    return config.model_copy(update={"trainer": config.trainer.model_copy(update=trainer)})


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().full_tensor()


def counted(collective: str):
    """FSDP2's calls of a collective."""
    return patch.object(dist, collective, wraps=getattr(dist, collective))


def update(ranks: Ranks, model: Path, layout: dict) -> tuple:
    """What one update computed, and its updater."""
    updater = make_updater(model, setting(model, layout), ranks)
    batch = updater.prepare(trajectories())
    with counted("all_gather_single") as gathers, counted("reduce_scatter_single") as reductions:
        metrics = updater.update(batch, version=2)
    named = dict(updater.model.named_parameters())
    found = {
        "loss": float(metrics["loss"]),
        "gradients": {name: whole(p.grad) for name, p in named.items()},
        "weights": {name: whole(p) for name, p in named.items()},
        "micro_batches": len(batch.minibatches[0]),
        "gathers": gathers.call_count,
        "reductions": reductions.call_count,
        "kept": {(str(p.to_local().dtype), str(p.grad.dtype), str(p.to_local().device)) for p in named.values()},
        "elements": sum(p.to_local().numel() for p in named.values()),
    }
    return found, updater


def read_back(ranks: Ranks, updater, model: Path, layout: dict, path: Path) -> bool:
    """Whether another layout finds the same in the checkpoint of `updater`, bit for bit."""
    updater.model.reshard()  # which a publication's probe leaves to the next backward pass
    again = make_updater(model, setting(model, layout), ranks, path)
    pairs = [
        (whole(mine), whole(its))
        for u, v in zip(updater.model.parameters(), again.model.parameters(), strict=True)
        for mine, its in ((u, v), (updater.optimizer.state[u]["exp_avg"], again.optimizer.state[v]["exp_avg"]))
    ]
    return all(torch.equal(mine, its) for mine, its in pairs)


def filled(ranks: Ranks, path: Path) -> dict:
    """The weights of a folder once each rank has read its part, and the most memory that took, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    before = resident("VmRSS")
    model = sharded(path, setting(path, {}), ranks)
    fill(model, path, ranks)
    peak = resident("VmHWM") - before
    return {"weights": {name: whole(p) for name, p in model.named_parameters()}, "peak": peak}


def resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main(out: Path, model: Path, others: list[Path]) -> None:
    layouts = list(LAYOUTS.values())
    with joined(Trainer(ranks=4)) as ranks:

        def with_mesh(layout: dict) -> Ranks:
            return replace(ranks, mesh=mesh_of("cpu", 4, layout.get("replicas", 1)))

        for number, layout in enumerate(layouts):
            found, updater = update(with_mesh(layout), model, layout)
            with checkpoint.Writer(out / "checkpoints", ranks, kept=99) as writer:
                writer.begin(updater, {"version": number})
                writer.settle(wait=True)
            write_weights(updater.model, out / f"weights-{number}", 1, model, "float32", [1, 2, 3], with_mesh(layout))
            other = layouts[number - 1]
            found["reads back"] = read_back(with_mesh(other), updater, model, other, out / "checkpoints" / str(number))
            found["elements"] = ranks.gather(found["elements"])
            if ranks.first:
                torch.save(found, out / f"{number}.pt")
        for path in others:
            found = filled(ranks, path)
            found["peak"] = max(ranks.gather(found["peak"]))
            if ranks.first:
                torch.save(found, out / f"{path.name}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(path) for path in sys.argv[3:]])
