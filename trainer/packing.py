"""Trajectories of very different lengths in micro-batches of at most `budget` tokens; none knows of the others.

    flat                                           one row, nothing padded; attention stays within a trajectory, see
    │ 0 1 2 … 19│0 1 … 11│0 1 … 7│0 1 2 … 9│       trainer/attention.py

    rows                                           for models that tell trajectories apart by their positions alone:
    ┌──────────────────────────┐                   as wide as the longest, and attention costs rows · width²
    │ 0 1 2 3 4 5 6 7 8 9 … 19 │
    │ 0 1 2 3 … 11│0 1 2 … 7   │                   alone: a row for each, for models that do not (recurrent ones)
    │ 0 1 2 … 9│0 1 2 … 7│pad  │
    └──────────────────────────┘

What is computed for a trajectory does not depend on where it lies. A plan is a pure function of the lengths, so every
rank knows the plan of all ranks.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from typing import Literal

import numpy as np
import torch

from pipeline.trajectory import Trajectory

Layout = Literal["flat", "rows", "alone"]
Rows = list[list[int]]  # of trajectory indices: what lies in each row of one micro-batch


def plan(
    lengths: Sequence[int],
    budget: int,
    ranks: int = 1,
    layout: Layout = "flat",
    costs: Sequence[float] | None = None,
) -> list[list[Rows]]:
    """For each rank its micro-batches, equally many on every rank (collectives must match): plan[rank][k] -> Rows.

    lengths     [n] tokens of each trajectory
    budget      cells (rows · width) of one micro-batch; a longer trajectory gets one of its own
    costs       [n] by which the ranks have equal shares, such as the FLOPs of trainer/throughput.py, of which a token's
                share is a L + b L²; None: by tokens
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    shares = _spread(order, lengths if costs is None else costs, ranks)
    if layout == "flat":
        count = max(_fewest(share, lengths, budget) for share in shares)
        return [[[members] if members else [] for members in _spread(share, lengths, count)] for share in shares]
    batches = [_dense(share, lengths, budget, share_rows=layout == "rows") for share in shares]
    most = max(1, *map(len, batches))
    return [own + [[]] * (most - len(own)) for own in batches]


def _spread(order: Iterable[int], weights: Sequence[float], count: int) -> list[list[int]]:
    """`count` shares about equally heavy: each of `order`, heaviest first, goes to the lightest."""
    shares: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0.0, k) for k in range(count)]
    heapify(lightest)
    for i in order:
        load, k = lightest[0]
        shares[k].append(i)
        heapreplace(lightest, (load + weights[i], k))
    return shares


def _fewest(share: list[int], lengths: Sequence[int], budget: int) -> int:
    """In how many micro-batches it fits; in more it fits as well."""
    count = max(1, math.ceil(sum(min(lengths[i], budget) for i in share) / budget))
    while any(
        len(members) > 1 and sum(lengths[i] for i in members) > budget for members in _spread(share, lengths, count)
    ):
        count += 1
    return count


def _dense(share: list[int], lengths: Sequence[int], budget: int, share_rows: bool) -> list[Rows]:
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
    lengths            of what the flattened cells hold, one after another: trajectories, and padding
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    sources: torch.Tensor
    targets: torch.Tensor
    rollout: torch.Tensor
    members: list[int]
    counts: list[int]
    lengths: list[int]

    def to(self, device: torch.device) -> "MicroBatch":
        names = ("tokens", "positions", "sources", "targets", "rollout")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def without(self, rejected: torch.Tensor) -> "MicroBatch":
        """The same forward pass with fewer action tokens; rejected: [n] bool."""
        kept = ~rejected
        actions = {name: getattr(self, name)[kept] for name in ("sources", "targets", "rollout")}
        return replace(self, **actions, counts=[int(part.sum()) for part in kept.split(self.counts)])


def pack(rows: Rows, trajectories: Sequence[Trajectory]) -> MicroBatch:
    """The tensors of one micro-batch; no rows: a single idle cell, so that this rank still joins the collectives."""
    width = max((sum(len(trajectories[i].tokens) for i in row) for row in rows), default=1)
    tokens = np.zeros((max(len(rows), 1), width), np.int64)
    positions = np.zeros_like(tokens)  # padding: each cell a sequence of its own
    count = np.arange(width)
    sources, targets, rollout = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    members, counts, lengths = [], [], []
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
            lengths.append(len(t.tokens))
            start = end
        if start < width:
            lengths.append(width - start)
    arrays = (tokens, positions, *map(np.concatenate, (sources, targets, rollout)))
    return MicroBatch(*map(torch.from_numpy, arrays), members=members, counts=counts, lengths=lengths or [width])


def action_places(t: Trajectory) -> np.ndarray:
    """[L] int64: where the action tokens are; never 0, since nothing predicts a first token."""
    return 1 + np.flatnonzero(t.loss_mask[1:].view(bool))  # of bools it is twice as fast
