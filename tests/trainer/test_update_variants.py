"""Whole updates in every variant of the loss, against loops in float64, and what is true of each however it is cut."""

import numpy as np
import pytest
import torch

from advantage import estimate
from pipeline.config import Trainer
from tests.trainer import plain
from tests.trainer.gradients import compute, distance, make_updater, settings
from tests.trainer.ledger import trajectory
from tests.trainer.variants import VARIANTS
from trainer.batch import advantages_of, describe
from trainer.packing import action_places
from trainer.ranks import joined


def thirteen():
    return [trajectory(seed, longest=100, version=seed % 2) for seed in range(13)]


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "overlong"])
def test_an_update_is_that_of_plain_loops_in_float64(tiny_model, name):
    options = dict(VARIANTS[name])
    count = options.pop("updates", 1)
    loss, gradient, weights, tokens, _ = plain.updates(settings(tiny_model, 400, **options), thirteen(), count)
    metrics, found, moved = compute(tiny_model, 400, **VARIANTS[name])
    assert distance(found, gradient) < 1e-5
    assert distance(moved, weights) < 1e-5
    assert metrics["action_tokens"] == tokens
    if options.get("minibatches", 1) == 1:  # else the metric is the mean of the steps
        assert metrics["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-6)


def test_clips_act_from_the_second_step_on(tiny_model):
    gspo = VARIANTS["GSPO"]
    once, _, _ = compute(tiny_model, 400, **gspo | {"minibatches": 1})
    twice, _, _ = compute(tiny_model, 400, **gspo)
    assert once["clip_fraction"] == 0 == once["sequence_clip_fraction"]
    assert 0 < twice["sequence_clip_fraction"] < 1 and 0 < twice["clip_fraction"] < 1


@pytest.mark.parametrize("minibatches", [1, 2])
def test_what_is_rejected_has_no_part_in_the_divisor_or_the_centre_of_the_advantages(tiny_model, minibatches):
    rejecting = VARIANTS["tokens rejected"] | {"minibatches": minibatches}
    everything, _, _ = compute(tiny_model, 400, minibatches=minibatches)
    metrics, _, _ = compute(tiny_model, 400, **rejecting)
    share = metrics["action_tokens"] / everything["action_tokens"]
    assert 0.2 < metrics["rejected_fraction"] < 0.8
    assert metrics["rejected_fraction"] == pytest.approx(1 - share)
    assert metrics["rejected_trajectories"] == 0
    assert abs(metrics["advantage_center"]) < 1e-12


def test_the_share_of_trajectories_that_are_rejected_whole_is_told(tiny_model):
    metrics, _, _ = compute(tiny_model, 400, **VARIANTS["trajectories rejected"])
    assert 0.2 < metrics["rejected_trajectories"] < 0.8
    assert abs(metrics["advantage_center"]) < 1e-12


def test_a_batch_that_is_rejected_whole_moves_nothing_and_says_so(tiny_model):
    never = {"rejection": "token", "rejection_measure": "k2", "rejection_high": 0.0}
    metrics, found, _ = compute(tiny_model, 400, minibatches=2, loss=never)
    assert metrics["rejected_fraction"] == 1 == metrics["rejected_trajectories"]
    assert metrics["loss"] == 0 == metrics["grad_norm"]
    assert all((g == 0).all() for g in found.values())


@pytest.mark.parametrize("reference", ["initial", "ewma"])
def test_the_reference_stays_or_follows_as_it_says(tiny_model, reference):
    decay = {"reference_decay": 0.75} if reference == "ewma" else {}
    config = settings(tiny_model, 400, loss={"kl": 0.5, "reference": reference, **decay})
    with joined(Trainer()) as ranks:
        updater = make_updater(ranks, config)
        begun = {name: p.full_tensor().clone() for name, p in updater.reference.named_parameters()}
        kl = [updater.update(updater.prepare(thirteen()), version=2)["kl"] for _ in range(3)]
        updater.reference.reshard()
        held = {name: p.full_tensor() for name, p in updater.reference.named_parameters()}
    assert kl[0] == pytest.approx(0, abs=1e-7) and kl[1] > 1e-5, "at first it is the policy itself"
    expected = plain.updates(config, thirteen(), 3)[-1] if reference == "ewma" else begun
    assert distance(held, expected) < 1e-6
    if reference == "ewma":
        assert distance(held, begun) > 1e-4


def test_no_reference_is_loaded_that_nothing_uses(tiny_model):
    with joined(Trainer()) as ranks:
        assert make_updater(ranks, settings(tiny_model, 400)).reference is None


def test_an_entropy_bonus_raises_the_entropy(tiny_model):
    ordinary, _, _ = compute(tiny_model, 400, updates=4)
    rewarded, _, _ = compute(tiny_model, 400, updates=4, loss={"entropy": 5.0})
    assert rewarded["entropy"] > ordinary["entropy"]


def test_logprobs_of_trajectories_come_in_their_order_and_of_action_tokens_only(tiny_model):
    trajectories = thirteen()
    with joined(Trainer()) as ranks:
        updater = make_updater(ranks, settings(tiny_model, 150))
        found = updater.logprobs(trajectories)
        updater.update(updater.prepare(trajectories), version=2)
        later = updater.logprobs(trajectories)
    model = plain.AutoModelForCausalLM.from_pretrained(tiny_model).double()
    for t, part, other in zip(trajectories, found, later, strict=True):
        with torch.no_grad():
            expected = plain.forward(model, t)[0][action_places(t) - 1].numpy()
        np.testing.assert_allclose(part, expected, atol=1e-5)
        assert np.abs(other - part).max() > 1e-3, "the policy has moved"


def test_a_long_trajectory_is_worth_less_to_the_advantage_and_the_same_to_the_metrics(tiny_model):
    trajectories = thirteen()
    config = settings(tiny_model, 400, advantage={"overlong_buffer": 2000, "overlong_penalty": 0.5})
    counts = np.array([t.loss_mask.sum() for t in trajectories])
    lengths = np.array([len(t.tokens) for t in trajectories])
    penalties = -0.5 * np.maximum(lengths - 48, 0) / 2000  # the context is 2,048 tokens long
    assert (penalties < 0).any() and (penalties == 0).any()
    expected = estimate(
        "spo++",
        [t.reward + p for t, p in zip(trajectories, penalties, strict=True)],
        values=[t.value for t in trajectories],
        action_tokens=counts,
    )
    found = advantages_of(trajectories, counts, config)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    told = describe(trajectories, counts, found, config, version=2)
    assert told["overlong_fraction"] == pytest.approx((penalties < 0).mean())
    assert told["overlong_penalty"] == pytest.approx(penalties.mean())
    assert told["reward"] == pytest.approx(np.mean([t.reward for t in trajectories]))
    assert "overlong_penalty" not in describe(trajectories, counts, found, settings(tiny_model, 400), version=2)
