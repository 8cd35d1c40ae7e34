"""Trajectories of very different lengths side by side in dense rows, none of which knows of the others.

    one micro-batch, at most `budget` cells          positions restart with every trajectory, which is what keeps
    ┌──────────────────────────┐                     them apart: attention is causal and stays within one trajectory
    │ 0 1 2 3 4 5 6 7 8 9 . . 19│  the longest
    │ 0 1 2 3 . . 11│0 1 2 . . 7│  two that fit      rows are as wide as the longest: attention costs rows · width²
    │ 0 1 2 . . 9│0 1 2 . 7│pad │
    └──────────────────────────┘

What is computed for a trajectory does not depend on where it lies. A plan is a pure function of the lengths, so every
rank knows the plan of all ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.trajectory import Trajectory

Rows = list[list[int]]  # of trajectory indices: what lies in each row of one micro-batch


def plan(lengths: Sequence[int], budget: int, ranks: int = 1, share_rows: bool = True) -> list[list[Rows]]:
    """For each rank its micro-batches, equally many on every rank (collectives must match): plan[rank][k] -> Rows.

    lengths     [n] tokens of each trajectory
    budget      cells (rows · width) of one micro-batch; a longer trajectory gets one of its own
    share_rows  False: one trajectory a row, for models that do not restart with the positions
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for i in order:
        lightest = loads.index(min(loads))
        shares[lightest].append(i)
        loads[lightest] += lengths[i]
    batches = [_micro_batches(share, lengths, budget, share_rows) for share in shares]
    most = max(1, *map(len, batches))
    return [own + [[]] * (most - len(own)) for own in batches]


def _micro_batches(share: list[int], lengths: Sequence[int], budget: int, share_rows: bool) -> list[Rows]:
    """First fit, longest first."""
    batches: list[Rows] = []
    while share:
        width = lengths[share[0]]
        room: list[int] = []  # cells left in each row
        rows: Rows = []
        later = []
        for i in share:
            row = next((r for r, left in enumerate(room) if lengths[i] <= left), None) if share_rows else None
            if row is None and (not rows or (len(rows) + 1) * width <= budget):
                row = len(rows)
                rows.append([])
                room.append(width)
            if row is None:
                later.append(i)
            else:
                rows[row].append(i)
                room[row] -= lengths[i]
        batches.append(rows)
        share = later
    return batches


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass.

    tokens, positions  [rows, width] int64
    sources            [n] int64, index into the flattened cells whose output predicts each action token
    targets            [n] int64, the action tokens themselves
    rollout            [n] float32 nats, their log-probs as the engines reported them
    members            the trajectories (indices into the update) whose action tokens follow one another in [n]
    counts             action tokens of each member; they sum to n
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    sources: torch.Tensor
    targets: torch.Tensor
    rollout: torch.Tensor
    members: list[int]
    counts: list[int]

    def to(self, device: torch.device) -> "MicroBatch":
        tensors = (self.tokens, self.positions, self.sources, self.targets, self.rollout)
        return MicroBatch(*(tensor.to(device) for tensor in tensors), members=self.members, counts=self.counts)

    def without(self, rejected: torch.Tensor) -> "MicroBatch":
        """The same forward pass with fewer action tokens; rejected: [n] bool."""
        kept = ~rejected
        actions = (tensor[kept] for tensor in (self.sources, self.targets, self.rollout))
        counts = [int(part.sum()) for part in kept.split(self.counts)]
        return MicroBatch(self.tokens, self.positions, *actions, members=self.members, counts=counts)


def pack(rows: Rows, trajectories: Sequence[Trajectory]) -> MicroBatch:
    """The tensors of one micro-batch; no rows: a single idle cell, so that this rank still joins the collectives."""
    width = max((sum(len(trajectories[i].tokens) for i in row) for row in rows), default=1)
    tokens = np.zeros((max(len(rows), 1), width), np.int64)
    positions = np.zeros_like(tokens)  # padding: each cell a sequence of its own
    count = np.arange(width)
    sources, targets, rollout = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    members, counts = [], []
    for r, row in enumerate(rows):
        start = 0
        for i in row:
            t = trajectories[i]
            end = start + len(t.tokens)
            tokens[r, start:end] = t.tokens
            positions[r, start:end] = count[: end - start]
            actions = action_places(t)
            sources.append(actions + (r * width + start - 1))
            targets.append(t.tokens[actions])
            rollout.append(t.rollout_logprobs[actions])
            members.append(i)
            counts.append(len(actions))
            start = end
    arrays = (tokens, positions, *map(np.concatenate, (sources, targets, rollout)))
    return MicroBatch(*map(torch.from_numpy, arrays), members=members, counts=counts)


def action_places(t: Trajectory) -> np.ndarray:
    """[L] int64: where the action tokens are; never 0, since nothing predicts a first token."""
    return 1 + np.flatnonzero(t.loss_mask[1:].view(bool))  # of bools it is twice as fast
