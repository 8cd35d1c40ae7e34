"""Why an optimizer step has no finite gradient. Looked for only then, by computing its log-probs once more.

log-probs of the engines ─▶ of the policy, now and at the start ─▶ of the reference ─▶ loss ─▶ gradient
                             the first that is not finite is the cause: of which trajectories, in which parameter
"""

from collections.abc import Iterable, Sequence
from math import isfinite

import torch

from pipeline.trajectory import Trajectory
from trainer.packing import MicroBatch
from trainer.ranks import Ranks, own_part

NAMED = 3  # entries, at most

# [n] nats each, by what they are
Values = dict[str, torch.Tensor]


def cause(
    loss: float,
    norm: float,
    values: Iterable[tuple[MicroBatch, Values]],
    trajectories: Sequence[Trajectory],
    model: torch.nn.Module,
    ranks: Ranks,
) -> str:
    """The same words on every rank, all of which call it.

    loss, norm  of the whole step, of which one is not finite
    values      what the loss is made of, of each of this rank's micro-batches, in the order in which it is computed
    model       with the gradients as they are before they are clipped
    """
    found: dict[str, list[int]] = {}
    for micro, named in values:
        for name, tensor in named.items():
            bad = (~torch.isfinite(tensor)).split(micro.counts)
            found.setdefault(name, []).extend(i for i, part in zip(micro.members, bad, strict=True) if part.any())
    everywhere = ranks.gather(found)
    for name in found:
        if members := sorted({i for rank in everywhere for i in rank[name]}):
            return f"{name} are not finite in {_entries(members, trajectories)}"
    if not isfinite(loss):
        return (
            f"the loss is {loss}, and all that it is made of is finite when it is computed once more: "
            "an operation that is not deterministic, or faulty memory of the device"
        )
    names = sorted({name for rank in ranks.gather(_overflowed(model)) for name in rank})
    if not names:
        return f"the loss ({loss:.4g}) and every gradient are finite, and only their norm ({norm}) overflows float32"
    where = f"{len(names)} of {sum(1 for _ in model.parameters())} parameters, {names[0][1]} the first"
    return f"the loss is finite ({loss:.4g}), the backward pass overflowed: in {where}"


def _overflowed(model: torch.nn.Module) -> list[tuple[int, str]]:
    """(place, name) of the parameters of which this rank's share of the gradient is not finite, by their order."""
    return [
        (place, name)
        for place, (name, parameter) in enumerate(model.named_parameters())
        if parameter.grad is not None and not bool(torch.isfinite(own_part(parameter.grad)).all())
    ]


def _entries(members: list[int], trajectories: Sequence[Trajectory]) -> str:
    entries = list(dict.fromkeys(trajectories[i].entry for i in members))
    named = ", ".join(entries[:NAMED]) + (", …" if len(entries) > NAMED else "")
    return f"{len(members)} of {len(trajectories)} trajectories (entry {named})"
