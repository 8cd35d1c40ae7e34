"""The loss against a float64 oracle written from the design, one token at a time."""

import math

import numpy as np
import pytest
import torch

from pipeline.config import Loss
from trainer.loss import combine, policy_loss


def oracle(logprobs, proximal, rollout, advantages, mask, config, tokens):
    """Loss, its gradient by logprobs, and counts of what acted: slow, float64, with no vector operation."""
    loss, grad = 0.0, np.zeros(len(logprobs))
    acted = dict.fromkeys(("clip", "dual", "truncated"), 0)
    weights = []
    for i in range(len(logprobs)):
        if not mask[i]:
            continue
        a = float(advantages[i])
        delta = min(max(float(logprobs[i]) - float(proximal[i]), -20.0), 20.0)
        r = math.exp(delta)
        inside = abs(float(logprobs[i]) - float(proximal[i])) < 20
        clipped_r = min(max(r, 1 - config.clip_low), 1 + config.clip_high)
        value, slope = -a * r, -a * r * inside
        if -a * clipped_r > value:
            value, slope = -a * clipped_r, 0.0
            acted["clip"] += 1
        if a < 0 and value > -config.dual_clip * a:
            value, slope = -config.dual_clip * a, 0.0
            acted["dual"] += 1
        w = math.exp(min(max(float(proximal[i]) - float(rollout[i]), -20.0), 20.0))
        if w > config.importance_cap:
            w = config.importance_cap
            acted["truncated"] += 1
        weights.append(w)
        if config.importance == "none":
            w = 1.0
        loss += w * value / tokens
        grad[i] = w * slope / tokens
    return loss, grad, acted, weights


def draw(seed, n=400, spread=0.6):
    rng = np.random.default_rng(seed)
    logprobs = -rng.exponential(1.5, n)
    proximal = logprobs - rng.normal(0, spread, n)
    rollout = proximal - rng.normal(0, spread, n)
    return logprobs, proximal, rollout, rng.normal(0, 1, n), rng.random(n) < 0.7


@pytest.mark.parametrize("importance", ["token", "none"])
@pytest.mark.parametrize("seed", range(5))
def test_loss_gradient_and_metrics_equal_the_oracle(seed, importance):
    config = Loss(importance=importance, dual_clip=1.5, importance_cap=1.5)
    columns = draw(seed)
    tokens = 1000.0
    expected, gradient, acted, weights = oracle(*columns, config, tokens)
    logprobs, proximal, rollout, advantages, mask = map(torch.from_numpy, columns)
    logprobs.requires_grad_()
    loss, metrics = policy_loss(logprobs, proximal, rollout, advantages, mask, config, tokens)
    loss.backward()
    assert min(acted.values()) > 5, "the draw must make every rule act"
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(logprobs.grad.numpy(), gradient, rtol=1e-12, atol=0)
    assert float(metrics["clip_fraction"]) == pytest.approx(acted["clip"] / tokens)
    assert float(metrics["dual_clip_fraction"]) == pytest.approx(acted["dual"] / tokens)
    assert float(metrics["tis_truncated"]) == pytest.approx(acted["truncated"] / tokens)
    assert float(metrics["tis_mean"]) == pytest.approx(sum(weights) / tokens, rel=1e-5)
    assert float(metrics["tis_max"]) == config.importance_cap
    kept = columns[4]
    log_ratio = columns[0][kept] - columns[1][kept]
    assert float(metrics["ppo_kl"]) == pytest.approx(-log_ratio.sum() / tokens, rel=1e-4, abs=1e-6)


def test_enormous_ratios_are_clamped_at_twenty_nats():
    logprobs = torch.tensor([0.0, 0.0, -500.0], dtype=torch.float64, requires_grad=True)
    proximal = torch.tensor([-500.0, -500.0, 0.0], dtype=torch.float64)
    config = Loss(dual_clip=1e30, importance_cap=1e30)
    advantages = torch.tensor([1.0, -1.0, -1.0])
    loss, metrics = policy_loss(logprobs, proximal, proximal - 500, advantages, torch.ones(3), config, 1.0)
    assert torch.isfinite(loss)
    assert float(metrics["tis_max"]) == pytest.approx(math.exp(20))
    # the dual clip is out of the way: the second token's ratio is exp(20), the others are clipped
    assert loss.item() == pytest.approx(math.exp(20) * (-1.28 + math.exp(20) + 0.8), rel=1e-12)


def test_dual_clip_caps_before_the_importance_weight_multiplies():
    config = Loss(dual_clip=2.0, importance_cap=2.0)
    at = torch.tensor
    loss, _ = policy_loss(at([0.0]), at([-5.0]), at([-9.0]), at([-1.0]), at([1]), config)
    assert loss.item() == 2.0 * 2.0


def test_what_the_mask_leaves_out_is_never_looked_at():
    columns = [torch.from_numpy(np.array(c, dtype=np.float64)) for c in draw(7)]
    mask = columns[4]
    loss, metrics = policy_loss(*columns, Loss())
    for column in columns[:4]:
        column[mask == 0] = math.nan
    columns[0].requires_grad_()
    same, same_metrics = policy_loss(*columns, Loss())
    same.backward()
    assert same.item() == loss.item()
    assert {k: float(v) for k, v in metrics.items()} == {k: float(v) for k, v in same_metrics.items()}
    assert (columns[0].grad[mask == 0] == 0).all()


def test_no_gradient_flows_through_the_importance_weight_or_the_proximal_policy():
    columns = [torch.from_numpy(np.array(c, dtype=np.float64)).requires_grad_() for c in draw(8)[:3]]
    policy_loss(*columns, *map(torch.from_numpy, draw(8)[3:]), Loss())[0].backward()
    assert columns[0].grad is not None
    assert columns[1].grad is None and columns[2].grad is None


def test_losses_and_metrics_of_parts_add_up_to_those_of_the_whole():
    columns = [torch.from_numpy(np.array(c, dtype=np.float64)) for c in draw(9)]
    tokens = float(columns[4].sum())
    whole = combine([policy_loss(*columns, Loss(), tokens)[1]])
    parts = combine(policy_loss(*(c[s] for c in columns), Loss(), tokens)[1] for s in (slice(0, 50), slice(50, None)))
    assert parts == pytest.approx(whole, rel=1e-5)
    weights = np.array(oracle(*(c.numpy() for c in columns), Loss(), tokens)[3])
    assert whole["ess"] == pytest.approx(weights.sum() ** 2 / (len(weights) * (weights**2).sum()), rel=1e-5)


def test_one_minibatch_with_its_own_proximal_has_ratio_one_and_the_policy_gradient():
    logprobs, _, _, advantages, mask = map(torch.from_numpy, draw(10))
    logprobs.requires_grad_()
    loss, metrics = policy_loss(logprobs, logprobs.detach(), logprobs.detach(), advantages, mask, Loss())
    loss.backward()
    assert loss.item() == pytest.approx(-advantages[mask].mean().item())
    torch.testing.assert_close(logprobs.grad, -advantages * mask / mask.sum())
    assert float(metrics["clip_fraction"]) == 0 == float(metrics["dual_clip_fraction"])


def test_a_part_without_tokens_has_loss_zero():
    empty = torch.zeros(0, requires_grad=True)
    loss, metrics = policy_loss(empty, empty, empty, empty, empty, Loss(), 10.0)
    loss.backward()
    assert loss.item() == 0 and float(metrics["tis_max"]) == 0
