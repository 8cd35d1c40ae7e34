"""Every variant of the loss against an oracle written from its paper, trajectory by trajectory, in float64."""

import itertools
import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from pipeline.config import Loss
from tests.trainer.oracle import Sample, loss_of, reject
from trainer.aggregation import token_weights
from trainer.loss import combine, policy_loss
from trainer.rejection import rejected

LONGEST = 12
COLUMNS = ("logprobs", "proximal", "rollout", "reference", "entropy")


def draw(seed, n=9, spread=0.4):
    """Trajectories of one to LONGEST tokens, with tool tokens between them; the third has no action token."""
    rng = np.random.default_rng(seed)
    samples = []
    for i in range(n):
        length = int(rng.integers(1, LONGEST + 1))
        logprobs = -rng.exponential(1.5, length)
        proximal = logprobs - rng.normal(0, spread, length)
        rollout = proximal - rng.normal(0, spread, length)
        reference = logprobs - rng.normal(0, spread, length)
        columns = (logprobs, proximal, rollout, reference, rng.uniform(0, 2, length))
        mask = [int(i != 2 and (t == 0 or rng.random() < 0.7)) for t in range(length)]
        samples.append(Sample(*map(torch.from_numpy, columns), mask, float(rng.normal())))
    return samples


def padded(samples, padding=0.0):
    """[n, LONGEST] of each column, of the mask, and [n, 1] advantages."""
    columns = {name: torch.full((len(samples), LONGEST), padding, dtype=torch.float64) for name in COLUMNS}
    mask = torch.zeros(len(samples), LONGEST)
    for i, s in enumerate(samples):
        mask[i, : len(s.mask)] = torch.tensor(s.mask)
        for name in COLUMNS:
            columns[name][i, : len(s.mask)] = getattr(s, name)
    return columns, torch.tensor([s.advantage for s in samples], dtype=torch.float64)[:, None], mask


def call(columns, advantages, mask, config, **options):
    given = {"reference": columns["reference"], "entropy": columns["entropy"]}
    logprobs, proximal, rollout = (columns[name] for name in COLUMNS[:3])
    return policy_loss(logprobs, proximal, rollout, advantages, mask, config, **given | options)


VARIANTS = [
    {"ratio": ratio, "aggregation": aggregation, "importance": importance}
    for ratio, aggregation, importance in itertools.product(
        ("token", "sequence"), ("token", "sequence", "constant"), ("token", "sequence", "none")
    )
]
EXTRAS = [{}, {"dual_clip": math.inf}, {"kl": 0.3, "entropy": 0.2}]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: " ".join(variant.values()))
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
def test_loss_and_gradient_are_the_papers(variant, extra):
    config = Loss(**{"clip_low": 0.1, "clip_high": 0.15, "dual_clip": 1.2, "importance_cap": 1.3} | variant | extra)
    samples = draw(3, n=25)
    for s in samples:
        s.logprobs.requires_grad_()
        s.entropy.requires_grad_(config.entropy > 0)
    expected = loss_of(samples, config, LONGEST)
    expected.backward()
    columns, advantages, mask = padded(samples)
    columns = {name: column.detach().requires_grad_() for name, column in columns.items()}
    loss, metrics = call(columns, advantages, mask, config)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert float(metrics["clip_fraction"]) > 0.1 and float(metrics["tis_truncated"]) > 0.1
    gradients = {name for name, column in columns.items() if column.grad is not None}
    assert gradients == ({"logprobs", "entropy"} if config.entropy else {"logprobs"})
    for name in gradients:
        for i, s in enumerate(samples):
            found = columns[name].grad[i, : len(s.mask)]
            wanted = getattr(s, name).grad
            torch.testing.assert_close(
                found, torch.zeros_like(found) if wanted is None else wanted, rtol=1e-10, atol=1e-14
            )


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: " ".join(variant.values()))
def test_tool_tokens_and_padding_are_never_looked_at_in_any_variant(variant):
    config = Loss(kl=0.1, entropy=0.1, **variant)
    columns, advantages, mask = padded(draw(4))
    expected, metrics = call(columns, advantages, mask, config)
    for column in columns.values():
        column[mask == 0] = math.nan
    columns["logprobs"].requires_grad_()
    loss, others = call(columns, advantages, mask, config)
    loss.backward()
    assert loss.item() == expected.item()
    assert {k: float(v) for k, v in metrics.items()} == {k: float(v) for k, v in others.items()}
    assert (columns["logprobs"].grad[mask == 0] == 0).all()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: " ".join(variant.values()))
def test_the_mask_decides_what_counts_also_in_divisors_and_in_means_of_a_trajectory(variant):
    """Without the mask, or with tool tokens counted, the loss would be another one."""
    config = Loss(**variant)
    columns, advantages, mask = padded(draw(5))
    loss, _ = call(columns, advantages, mask, config)
    everything, _ = call(columns, advantages, torch.ones_like(mask), config)
    assert loss.item() != pytest.approx(everything.item(), rel=1e-3)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: " ".join(variant.values()))
def test_parts_of_any_variant_add_up_when_the_divisors_are_those_of_the_whole_update(variant):
    config = Loss(kl=0.1, entropy=0.1, **variant)
    samples = draw(6)
    counts = torch.tensor([len(s.actions) for s in samples])
    whole = call(*padded(samples), config)
    divisors = {"tokens": float(counts.sum()), "trajectories": float((counts > 0).sum())}
    weights = torch.from_numpy(token_weights(counts.numpy(), config.aggregation, LONGEST))
    parts, total = [], 0.0
    for members in ([0, 1, 2], [], [3], [4, 5, 6, 7, 8]):
        columns, advantages, mask = padded([samples[i] for i in members])
        flat = {name: column[mask.bool()] for name, column in columns.items()}
        spread = advantages.expand_as(mask)[mask.bool()]
        loss, metrics = call(
            flat, spread, torch.ones_like(spread), config, counts=counts[members], weights=weights[members], **divisors
        )
        total += loss.item()
        parts.append(metrics)
    assert total == pytest.approx(whole[0].item(), rel=1e-10)
    assert combine(parts) == pytest.approx(combine([whole[1]]), rel=1e-5)


def test_a_sequence_ratio_is_clipped_for_a_whole_trajectory_at_once():
    columns, advantages, mask = padded(draw(7))
    config = Loss(ratio="sequence", aggregation="sequence", clip_low=0.1, clip_high=0.1, dual_clip=math.inf)
    columns["logprobs"].requires_grad_()
    loss, metrics = call(columns, advantages, mask, config)
    loss.backward()
    silent = [bool((columns["logprobs"].grad[i][mask[i] == 1] == 0).all()) for i in range(len(mask)) if mask[i].any()]
    mixed = [bool((columns["logprobs"].grad[i][mask[i] == 1] == 0).any()) for i in range(len(mask)) if mask[i].any()]
    assert silent == mixed and 0 < sum(silent) < len(silent)
    assert float(metrics["sequence_clip_fraction"]) == pytest.approx(sum(silent) / len(silent))


def test_the_weights_of_an_update_follow_from_its_counts_alone():
    counts = np.array([4, 0, 1])
    assert token_weights(counts, "token", 10).tolist() == [1 / 5] * 3
    assert token_weights(counts, "sequence", 10).tolist() == [1 / 8, 1 / 2, 1 / 2]
    assert token_weights(counts, "constant", 10).tolist() == [1 / 30] * 3
    for aggregation in ("token", "sequence", "constant"):
        assert np.isfinite(token_weights(np.zeros(2), aggregation, 10)).all()


@pytest.mark.parametrize("missing", ["kl", "entropy"])
def test_what_the_loss_needs_and_is_not_given_is_named(missing):
    columns, advantages, mask = padded(draw(8))
    with pytest.raises(ValueError, match=r"but policy_loss was given no (reference|entropy)"):
        policy_loss(*(columns[name] for name in COLUMNS[:3]), advantages, mask, Loss(**{missing: 0.1}))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    ("measure", "low", "high"),
    [("k1", -0.1, 0.2), ("k1", None, 0.1), ("k1", -0.1, None), ("k2", None, 0.06), ("k3", None, 0.06)],
)
def test_rejected_are_the_tokens_or_trajectories_outside_the_bounds(level, measure, low, high):
    config = Loss(rejection=level, rejection_measure=measure, rejection_low=low, rejection_high=high)
    samples = draw(9, n=30)
    expected = [
        [1 - s.mask[t] for t in before.actions] for s, before in zip(reject(samples, config), samples, strict=True)
    ]
    columns, _, mask = padded(samples)
    counts = mask.sum(-1).long()
    flat = {name: column[mask.bool()] for name, column in columns.items()}
    found = rejected(flat["proximal"], flat["rollout"], counts, config)
    assert found.int().tolist() == [out for part in expected for out in part]
    assert 0.1 < found.float().mean() < 0.9


def test_a_number_that_is_none_is_not_rejected_in_silence():
    nan = torch.tensor([math.nan, 0.0])
    config = Loss(rejection="token", rejection_high=0.1)
    assert rejected(nan, torch.zeros(2), torch.tensor([2]), config).tolist() == [False, False]


def test_the_oracle_reads_every_setting_of_the_loss():
    """A setting that is added to [loss] needs a formula here."""
    known = {
        "ratio",
        "clip_low",
        "clip_high",
        "dual_clip",
        "aggregation",
        "importance",
        "importance_cap",
        "kl",
        "entropy",
    }
    rejection = {"rejection", "rejection_measure", "rejection_low", "rejection_high"}
    elsewhere = {"proximal", "reference", "reference_decay"}
    assert set(Loss.model_fields) == known | rejection | elsewhere
    assert {field.name for field in fields(Sample)} == {*COLUMNS, "mask", "advantage"}
