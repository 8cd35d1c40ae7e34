"""estimate("spo++") and what every estimator shares."""

import math

import numpy as np
import pytest

from advantage import ESTIMATORS, BadInput, estimate, normalize

REWARDS, VALUES, ACTION_TOKENS = [1.0, 0.0, 1.0, 0.0], [0.5, 0.25, 0.75, 0.5], [100, 400, 50, 900]


def test_the_advantage_is_reward_minus_frozen_value_under_the_token_measure():
    estimated = estimate("spo++", REWARDS, values=VALUES, action_tokens=ACTION_TOKENS)
    # Eq. 1 and 6, one token at a time.
    tokens = [r - v for r, v, n in zip(REWARDS, VALUES, ACTION_TOKENS, strict=True) for _ in range(n)]
    mean = math.fsum(tokens) / len(tokens)
    sigma = math.sqrt(math.fsum((a - mean) ** 2 for a in tokens) / (len(tokens) - 1))
    expected = [(r - v - mean) / (sigma + 1e-8) for r, v in zip(REWARDS, VALUES, strict=True)]
    np.testing.assert_allclose(estimated, expected, rtol=1e-12)
    assert estimated.dtype == np.float64


def test_the_ablation_swaps_only_the_measure():
    advantages = np.subtract(REWARDS, VALUES)
    for measure in ("token", "trajectory", "none"):
        ablated = estimate("spo++", REWARDS, values=VALUES, action_tokens=ACTION_TOKENS, normalization=measure)
        np.testing.assert_array_equal(ablated, normalize(advantages, ACTION_TOKENS, measure))


def test_the_ablation_needs_no_action_tokens():
    np.testing.assert_array_equal(estimate("spo++", [1, 0], values=[0.5, 0.5], normalization="none"), [0.5, -0.5])


def test_groups_play_no_part_in_spo_plus_plus():
    grouped = estimate("spo++", REWARDS, values=VALUES, action_tokens=ACTION_TOKENS, groups=["a", "a", "b", "b"])
    np.testing.assert_array_equal(grouped, estimate("spo++", REWARDS, values=VALUES, action_tokens=ACTION_TOKENS))


def test_an_empty_batch_has_no_advantages():
    assert estimate("spo++", [], values=[], action_tokens=[]).shape == (0,)


def test_the_input_is_left_as_it_was():
    rewards, values, action_tokens = map(np.array, (REWARDS, VALUES, ACTION_TOKENS))
    estimate("spo++", rewards, values=values, action_tokens=action_tokens)
    assert (rewards.tolist(), values.tolist(), action_tokens.tolist()) == (REWARDS, VALUES, ACTION_TOKENS)


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"rewards": [1, math.nan, 0, 0]}, "NOT_FINITE", "rewards[1] is nan"),
        ({"values": [0.5, 0.5, 0.5, math.inf]}, "NOT_FINITE", "values[3] is inf"),
        ({"values": [0.5]}, "LENGTH", "4 rewards, 1 values, 4 action_tokens"),
        ({"groups": ["a"]}, "LENGTH", "1 groups"),
        ({"values": None}, "MISSING", "needs values"),
        ({"action_tokens": None}, "MISSING", "needs action_tokens"),
        ({"algorithm": "spo+"}, "UNKNOWN", "unknown algorithm 'spo+'; known: spo++"),
        ({"normalization": "batch"}, "UNKNOWN", "unknown measure 'batch'; known: token, trajectory, none"),
    ],
)
def test_bad_input_is_refused_with_what_was_found(change, code, words):
    call = {"algorithm": "spo++", "rewards": REWARDS, "values": VALUES, "action_tokens": ACTION_TOKENS} | change
    with pytest.raises(BadInput) as refused:
        estimate(call.pop("algorithm"), call.pop("rewards"), **call)
    assert refused.value.code == code and words in str(refused.value)


@pytest.mark.parametrize("algorithm", ESTIMATORS)
def test_every_estimator_gives_one_finite_advantage_per_trajectory(algorithm):
    groups = ["a", "a", "b", "b"]
    estimated = estimate(algorithm, REWARDS, values=VALUES, action_tokens=ACTION_TOKENS, groups=groups)
    assert estimated.shape == (4,) and estimated.dtype == np.float64 and np.isfinite(estimated).all()
