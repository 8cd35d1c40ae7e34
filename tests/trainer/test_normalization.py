"""The measure under which advantages are centred is the whole update's, whatever its ranks, steps and micro-batches."""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import Loss
from tests.trainer.gradients import settings as config_of
from tests.trainer.ledger import trajectory
from trainer import model as policy
from trainer.aggregation import divisors_of
from trainer.ranks import Ranks
from trainer.rejection import rejected, rejection_metrics
from trainer.update import Updater


@pytest.fixture(scope="module")
def model(tiny_model):
    return policy.load(tiny_model)


def exact(rewards, values, counts):
    """SPO++, Eq. 6, in fractions; the root alone is rounded."""
    a = [Fraction(r) - Fraction(v) for r, v in zip(rewards, values, strict=True)]
    total = sum(counts)
    if total <= 1:
        return [0.0] * len(a)
    mean = sum(n * x for n, x in zip(counts, a, strict=True)) / total
    variance = sum(n * (x - mean) ** 2 for n, x in zip(counts, a, strict=True)) / (total - 1)
    if variance == 0:
        return [0.0] * len(a)
    return [float(x - mean) / (sqrt(variance) + 1e-8) for x in a]


@settings(max_examples=40, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=24, unique=True),
    rewards=st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.3, 1e6, -1e6]), min_size=24, max_size=24),
    ranks=st.integers(1, 5),
    steps=st.integers(1, 6),
    budget=st.sampled_from([1, 64, 300, 4096]),
    layout=st.sampled_from(["flat", "rows", "alone"]),
)
def test_all_parts_of_an_update_add_up_to_one_centred_measure(model, seeds, rewards, ranks, steps, budget, layout):
    trajectories = [trajectory(seed, reward=reward) for seed, reward in zip(seeds, rewards, strict=False)]
    config = config_of(model.name_or_path, budget, steps)
    expected = exact(
        [t.reward for t in trajectories], [t.value for t in trajectories], [t.action_tokens for t in trajectories]
    )
    weight, tokens, seen = 0.0, 0, []
    for rank in range(ranks):
        updater = Updater(model, None, config, Ranks(rank, ranks, torch.device("cpu"), None), layout)
        prepared = updater.prepare(trajectories)
        assert prepared.advantages == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert len(prepared.minibatches) == steps
        for own in prepared.minibatches:
            for micro in own:
                per_token = np.repeat(prepared.advantages[micro.members], micro.counts)
                weight, tokens = weight + per_token.sum(), tokens + len(micro.targets)
                seen += [(i, t) for i, n in zip(micro.members, micro.counts, strict=True) for t in range(n)]
    assert abs(weight) <= 1e-9 * max(tokens, 1)
    assert sorted(seen) == [(i, t) for i, n in enumerate(prepared.counts) for t in range(n)], "each token once"
    assert divisors_of(prepared.counts, config).tokens * steps == tokens


@settings(max_examples=60, deadline=None)
@given(
    apart=st.lists(st.lists(st.floats(-3, 3, width=32), max_size=6), min_size=1, max_size=6),
    kind=st.sampled_from(["token", "sequence"]),
    measure=st.sampled_from(["k1", "k2", "k3"]),
    high=st.floats(0.01, 2),
)
def test_what_is_rejected_is_left_out_before_it_is_counted_and_a_trajectory_alone_decides(apart, kind, measure, high):
    loss = Loss(rejection=kind, rejection_measure=measure, rejection_high=high)
    counts = [len(part) for part in apart]
    proximal = torch.tensor([x for part in apart for x in part], dtype=torch.float32)
    out = rejected(proximal, torch.zeros_like(proximal), torch.tensor(counts), loss)
    alone = [
        rejected(torch.tensor(part, dtype=torch.float32), torch.zeros(len(part)), torch.tensor([len(part)]), loss)
        for part in apart
    ]
    assert out.tolist() == torch.cat(alone).tolist()
    left = [int((~part).sum()) for part in out.split(counts)]
    if kind == "sequence":
        assert all(now in (0, before) for now, before in zip(left, counts, strict=True))
    told = rejection_metrics(np.array(counts), np.array(left), [(0.0, 0.0)])
    assert told["rejected_fraction"] == pytest.approx(float(out.sum()) / max(sum(counts), 1))
