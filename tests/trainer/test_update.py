"""One update is the same however its trajectories are packed and shared out among ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from advantage import estimate
from pipeline.config import Loss, Trainer
from tests.trainer import gradients
from tests.trainer.gradients import distance
from tests.trainer.ledger import trajectory
from tests.trainer.variants import VARIANTS
from trainer.batch import describe
from trainer.ranks import joined


def same(metrics, expected):
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        close = pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, int | float) else value
        assert metrics[name] == close, name


@pytest.fixture(scope="module")
def one_rank(tiny_model):
    return gradients.compute(tiny_model, budget=400)


def plain_update(folder):
    """Loss and gradient of the same update by a plain Hugging Face loop, one padded-free forward each, in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder).double()
    trajectories = [trajectory(seed, longest=100, version=seed % 2) for seed in range(13)]
    counts = [int(t.loss_mask.sum()) for t in trajectories]
    advantages = estimate(
        "spo++", [t.reward for t in trajectories], values=[t.value for t in trajectories], action_tokens=counts
    )
    total = 0.0
    for t, advantage in zip(trajectories, advantages, strict=True):
        tokens = torch.from_numpy(t.tokens.astype(np.int64))[None]
        logprobs = torch.log_softmax(model(input_ids=tokens).logits[0], -1)[:-1].gather(1, tokens[0, 1:, None])[:, 0]
        actions = torch.from_numpy(t.loss_mask.astype(bool))
        logprobs = logprobs[actions[1:]]
        rollout = torch.from_numpy(t.rollout_logprobs)[actions].double()
        weight = (logprobs.detach() - rollout).exp().clamp(max=Loss().importance_cap)
        loss = -(weight * advantage * (logprobs - logprobs.detach()).exp()).sum() / sum(counts)
        loss.backward()
        total += loss.item()
    return total, {name: p.grad.float() for name, p in model.named_parameters()}


def test_an_update_is_that_of_a_plain_loop_in_float64(tiny_model, one_rank):
    loss, expected = plain_update(tiny_model)
    metrics, found, _ = one_rank
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert distance(found, expected) < 1e-5
    assert metrics["grad_norm"] == pytest.approx(float(torch.cat([g.flatten() for g in expected.values()]).norm()))
    assert abs(metrics["advantage_center"]) < 1e-12


def test_tool_tokens_are_neither_trained_on_nor_counted(tiny_model):
    trajectories = [trajectory(seed, longest=100) for seed in range(13)]
    with joined(Trainer()) as ranks:
        prepared = gradients.make_updater(ranks, gradients.settings(tiny_model, 400)).prepare(trajectories)
    assert prepared.counts.tolist() == [int(t.loss_mask.sum()) for t in trajectories]
    trained_on = {}
    for micro in prepared.minibatches[0]:
        trained_on |= dict(zip(micro.members, micro.targets.split(micro.counts), strict=True))
    for i, t in enumerate(trajectories):
        assert trained_on[i].tolist() == t.tokens[t.loss_mask == 1].tolist()


@pytest.mark.parametrize(
    ("budget", "layout"), [(1, "flat"), (150, "flat"), (4096, "flat"), (150, "rows"), (4096, "rows"), (4096, "alone")]
)
def test_packing_changes_nothing(tiny_model, one_rank, budget, layout):
    metrics, found, _ = gradients.compute(tiny_model, budget, layout=layout)
    same(metrics, one_rank[0])
    assert distance(found, one_rank[1]) < 1e-5


CASES = {
    "one step": {"budget": 150},
    "one step again": {"budget": 150},
    "two steps": {"budget": 400, "minibatches": 2},
    "a few logits at a time": {"budget": 400, "logits": 7, "loss": {"entropy": 0.1}},
    "layers recomputed": {"budget": 150, "trainer": {"activation_checkpointing": True}},
    "two trajectories poisoned": {"budget": 150, "minibatches": 5, "poisoned": [3, 7]},
    **{f"variant: {name}": {"budget": 150} | options for name, options in VARIANTS.items()},
}


@pytest.fixture(scope="module")
def two_ranks(tiny_model, tmp_path_factory):
    """What two gloo ranks found, for each case."""
    out = tmp_path_factory.mktemp("two")
    launch = [sys.executable, "-W", "error", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [gradients.__file__, str(tiny_model), str(out), *map(json.dumps, CASES.values())]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(gradients.__file__).parents[2])}
    done = subprocess.run(launch + arguments, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return {case: torch.load(out / f"{number}.pt") for number, case in enumerate(CASES)}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one_so_no_rank_divides_by_its_own_tokens(tiny_model, two_ranks, case):
    metrics, found, weights = gradients.compute(tiny_model, **CASES[case] | {"budget": 4096, "logits": 4096})
    same(two_ranks[case]["metrics"], metrics)
    assert distance(two_ranks[case]["gradients"], found) < 1e-5
    assert distance(two_ranks[case]["weights"], weights) < 1e-5


def test_the_same_batch_on_as_many_ranks_gives_the_same_bits(tiny_model, two_ranks):
    options = CASES["variant: KL to an EWMA, entropy"]
    once, again = (gradients.compute(tiny_model, **options) for _ in range(2))
    for ours, theirs in ((once, again), (two_ranks["one step"].values(), two_ranks["one step again"].values())):
        assert [list(part) for part in ours] == [list(part) for part in theirs]
        (metrics, *tensors), (others, *more) = ours, theirs
        assert metrics == others
        assert all(torch.equal(a[name], b[name]) for a, b in zip(tensors, more, strict=True) for name in a)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(("budget", "layout"), [(1, "flat"), (4096, "alone")])
def test_packing_changes_nothing_in_any_variant_of_the_loss(tiny_model, name, budget, layout):
    metrics, found, _ = gradients.compute(tiny_model, 400, **VARIANTS[name])
    other, others, _ = gradients.compute(tiny_model, budget, layout=layout, **VARIANTS[name])
    same(other, metrics)
    assert distance(others, found) < 1e-5


def test_turns_are_those_that_the_worker_counted_and_so_is_what_the_environment_counts(tiny_model):
    two = trajectory(1)
    split = two.segments[0]
    segments = [(split.start, 1, "a", 0), (split.start + 1, split.length - 1, "b", 1), two.segments[1]]
    counted = trajectory(1, metrics={"turns": 2, "tool_calls": 3, "no_answer": 1}, segments=segments)
    found = describe(
        [counted, two], np.array([1, 1]), np.array([1.0, -1.0]), gradients.settings(tiny_model, 400), version=1
    )
    assert found["turns"] == 2
    assert found["environment"] == {"no_answer": 0.5, "tool_calls": 1.5}
    assert found["advantage_center"] == 0


def test_two_minibatches_move_away_from_the_proximal_policy(tiny_model):
    metrics, _, _ = gradients.compute(tiny_model, 400, minibatches=2)
    assert metrics["ppo_kl"] != 0
    assert abs(metrics["advantage_center"]) < 1e-12


def test_the_rollouts_temperature_is_respected(tiny_model):
    cold, hot = (gradients.compute(tiny_model, 400, temperature=t)[0] for t in (0.5, 2.0))
    assert cold["entropy"] < hot["entropy"]


def test_the_largest_rewards_that_a_trajectory_may_have_are_trained_on(tiny_model):
    trajectories = [trajectory(seed, reward=reward) for seed, reward in enumerate((1e6, -1e6, 1e6, 0.0))]
    plain = {"loss": {"aggregation": "sequence"}, "advantage": {"normalization": "none"}}
    metrics, _, weights = gradients.compute(tiny_model, 400, trajectories=trajectories, **plain)
    assert 1e5 < metrics["grad_norm"] < 1e9
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())


def test_trajectories_without_action_tokens_have_no_weight(tiny_model, monkeypatch):
    reference = gradients.compute(tiny_model, 400)
    real = trajectory

    def with_silent_ones(seed, **fields):
        t = real(seed, **fields)
        if seed % 3:
            return t
        zeros = np.zeros_like(t.loss_mask)
        return real(seed, **fields, loss_mask=zeros, rollout_logprobs=zeros.astype(np.float32), segments=[])

    monkeypatch.setattr(gradients, "trajectory", with_silent_ones)
    metrics, found, _ = gradients.compute(tiny_model, 400)
    assert metrics["trajectories"] == 13 and metrics["action_tokens"] < reference[0]["action_tokens"]
    assert all(torch.isfinite(g).all() for g in found.values())
    monkeypatch.setattr(gradients, "trajectory", lambda seed, **fields: with_silent_ones(3 * seed, **fields))
    metrics, found, _ = gradients.compute(tiny_model, 400)
    assert metrics["grad_norm"] == 0 == metrics["loss"]


def one_action(seed):
    mask = np.zeros(12, np.uint8)
    mask[7] = 1
    rollout = -5.8 * mask.astype(np.float32)
    return trajectory(seed, tokens=np.arange(12), loss_mask=mask, rollout_logprobs=rollout, segments=[(7, 1, "e", 0)])


def test_a_batch_with_one_action_token_has_nothing_to_compare_it_with(tiny_model):
    metrics, found, _ = gradients.compute(tiny_model, 400, trajectories=[one_action(1)])
    assert metrics["loss"] == 0 == metrics["grad_norm"] and metrics["action_tokens"] == 1
    assert all((g == 0).all() for g in found.values())


def test_advantages_that_are_all_the_same_move_nothing(tiny_model):
    certain = [trajectory(seed, value=1.0, outcome=1.0) for seed in range(4)]
    metrics, found, _ = gradients.compute(tiny_model, 400, trajectories=certain)
    assert metrics["loss"] == 0 == metrics["grad_norm"] and metrics["brier"] == 0
    assert all((g == 0).all() for g in found.values())


@pytest.mark.parametrize("count", [5, 13])
def test_more_minibatches_than_divide_the_batch_are_all_trained_on(tiny_model, count):
    """Four optimizer steps on 2 + 1 + 1 + 1 trajectories, of which one has no action token at all."""
    trajectories = [trajectory(seed, longest=100) for seed in range(count)]
    silent = np.zeros_like(trajectories[1].loss_mask)
    trajectories[1] = trajectory(
        1, longest=100, loss_mask=silent, rollout_logprobs=silent.astype(np.float32), segments=[]
    )
    metrics, found, weights = gradients.compute(tiny_model, 400, minibatches=4, trajectories=trajectories)
    assert metrics["action_tokens"] == sum(t.loss_mask.sum() for t in trajectories)
    assert metrics["tis_mean"] > 0 and abs(metrics["advantage_center"]) < 1e-12
    for tensors in (found, weights):
        assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


def test_computing_in_bfloat16_gives_nearly_the_same_gradient_in_float32(tiny_model, one_rank):
    metrics, found, weights = gradients.compute(tiny_model, 400, dtype="bfloat16")
    assert distance(found, one_rank[1]) < 0.05
    assert metrics["mismatch_kl"] == pytest.approx(one_rank[0]["mismatch_kl"], rel=0.05)
    assert {tensor.dtype for tensor in (*found.values(), *weights.values())} == {torch.float32}
