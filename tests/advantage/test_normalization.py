"""normalize against Eq. 4 and 6 of arXiv 2608.24870 in exact rational arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from advantage import BadInput, normalize
from advantage.metrics import actor_center

finite = st.floats(-1e6, 1e6, allow_nan=False)
lengths = st.one_of(st.integers(0, 3), st.integers(0, 40_000), st.just(10**9))


def batches(numbers=finite):
    return st.lists(st.tuples(numbers, lengths), min_size=1, max_size=40)


def oracle(advantages, weights):
    """(A - μ) / (σ + 1e-8), where trajectory i counts weights[i] times; only the root is rounded."""
    total = sum(weights)
    if total <= 1:
        return [0.0] * len(advantages)
    exact = [Fraction(a) for a in advantages]
    mean = sum(w * a for w, a in zip(weights, exact, strict=True)) / total
    variance = sum(w * (a - mean) ** 2 for w, a in zip(weights, exact, strict=True)) / (total - 1)
    if variance == 0:
        return [0.0] * len(advantages)
    scale = Fraction(math.sqrt(variance)) + Fraction(1e-8)
    return [float((a - mean) / scale) for a in exact]


@given(batches())
def test_the_token_measure_equals_equation_6(batch):
    advantages, action_tokens = zip(*batch, strict=True)
    expected = oracle(advantages, action_tokens)
    np.testing.assert_allclose(normalize(advantages, action_tokens), expected, rtol=1e-9, atol=1e-9)


@given(batches())
def test_the_trajectory_measure_equals_equation_4(batch):
    advantages, action_tokens = zip(*batch, strict=True)
    expected = oracle(advantages, [1] * len(batch))
    np.testing.assert_allclose(normalize(advantages, action_tokens, "trajectory"), expected, rtol=1e-9, atol=1e-9)


@given(batches())
@example([(1.0, 1), (0.0, 10**9)])
@example([(1e6 + 0.1, 7), (1e6, 40_000), (1e6 + 0.2, 1)])
def test_the_token_measure_centers_what_a_token_mean_loss_sees(batch):
    advantages, action_tokens = zip(*batch, strict=True)
    normalized = normalize(advantages, action_tokens)
    terms = [tokens * a for tokens, a in zip(action_tokens, normalized, strict=True)]
    assert abs(math.fsum(terms)) <= 1e-12 * max(1.0, math.fsum(map(abs, terms)))


@given(batches())
def test_the_trajectory_measure_leaves_the_covariance_of_equation_5(batch):
    advantages, action_tokens = zip(*batch, strict=True)
    assume(sum(action_tokens) > 0)
    normalized = normalize(advantages, action_tokens, "trajectory")
    weights = np.array(action_tokens, float)
    covariance = np.mean((weights - weights.mean()) * (normalized - normalized.mean()))
    assert actor_center(normalized, action_tokens) == pytest.approx(covariance / weights.mean(), abs=1e-9)


@given(batches(st.floats(-1e299, 1e299)))
@example([(1e200, 0), (1.0, 1), (0.0, 2)])
@example([(1e299, 5), (-1e299, 7)])
def test_finite_advantages_of_any_size_stay_finite(batch):
    advantages, action_tokens = zip(*batch, strict=True)
    for measure in ("token", "trajectory", "none"):
        assert np.isfinite(normalize(advantages, action_tokens, measure)).all()


@given(st.lists(st.tuples(finite, st.integers(1, 20)), min_size=1, max_size=8))
def test_the_token_measure_is_the_trajectory_measure_of_tokens(batch):
    advantages, action_tokens = zip(*batch, strict=True)
    of_tokens = normalize(np.repeat(advantages, action_tokens), measure="trajectory")
    of_trajectories = np.repeat(normalize(advantages, action_tokens), action_tokens)
    np.testing.assert_allclose(of_tokens, of_trajectories, rtol=1e-9, atol=1e-9)


def test_swapping_the_two_measures_changes_the_named_center():
    # One success of 1 token, one failure of 3. By hand: μ_tok = 1/4, σ²_tok = (9/16 + 3/16) / 3 = 1/4.
    token = normalize([1, 0], [1, 3], "token")
    trajectory = normalize([1, 0], [1, 3], "trajectory")
    np.testing.assert_allclose(token, [1.5, -0.5], atol=1e-7)
    np.testing.assert_allclose(trajectory, [math.sqrt(0.5), -math.sqrt(0.5)], atol=1e-7)
    assert actor_center(token, [1, 3]) == pytest.approx(0, abs=1e-15)
    assert actor_center(trajectory, [1, 3]) == pytest.approx(-math.sqrt(0.5) / 2, abs=1e-7)


def test_a_micro_batch_is_not_the_batch():
    advantages, action_tokens = [1, 0, 1, 1], [10, 30, 20, 40]
    halves = np.concatenate(
        [normalize(advantages[:2], action_tokens[:2]), normalize(advantages[2:], action_tokens[2:])]
    )
    assert np.abs(halves - normalize(advantages, action_tokens)).max() > 0.1


def test_a_trajectory_without_action_tokens_moves_no_other():
    with_it = normalize([0.5, -0.5, 0.2, 1e9], [3, 4, 5, 0])
    np.testing.assert_array_equal(with_it[:3], normalize([0.5, -0.5, 0.2], [3, 4, 5]))
    assert np.isfinite(with_it[3])


@pytest.mark.parametrize(
    ("advantages", "action_tokens"),
    [
        ([0.3, -0.2], [0, 0]),  # no action token at all
        ([0.3, -0.2], [0, 1]),  # one: no unbiased σ
        ([0.3], [500]),  # one trajectory
        ([0.1] * 7, [3, 1, 4, 1, 5, 9, 2]),  # σ = 0
        ([1e9 + 0.1] * 3, [1, 1, 1]),  # σ = 0 whose mean rounds
        ([0.4, 0.4, 0.9], [2, 2, 0]),  # σ = 0 where the weight is
        ([], []),
    ],
)
def test_an_undefined_or_zero_spread_gives_zeros(advantages, action_tokens):
    np.testing.assert_array_equal(normalize(advantages, action_tokens), np.zeros(len(advantages)))


def test_the_trajectory_measure_gives_zeros_for_one_none_or_equal_trajectories():
    for advantages in ([], [0.7], [0.1] * 6):
        np.testing.assert_array_equal(normalize(advantages, measure="trajectory"), np.zeros(len(advantages)))


def test_no_measure_passes_a_copy():
    advantages = np.array([0.25, -3.0])
    unchanged = normalize(advantages, [1, 2], "none")
    np.testing.assert_array_equal(unchanged, advantages)
    assert unchanged is not advantages and unchanged.dtype == np.float64


def test_float32_input_is_summed_in_float64():
    advantages = np.array([0.1, 0.7, 0.3], np.float32)
    expected = normalize(advantages.astype(np.float64), [11, 13, 17])
    np.testing.assert_array_equal(normalize(advantages, np.array([11, 13, 17], np.int32)), expected)


@pytest.mark.parametrize(
    ("advantages", "action_tokens", "measure", "code", "words"),
    [
        ([0.0, math.nan], [1, 1], "token", "NOT_FINITE", "advantages[1] is nan"),
        ([-math.inf, 1], [1, 1], "trajectory", "NOT_FINITE", "advantages[0] is -inf"),
        ([math.nan], [1], "none", "NOT_FINITE", "advantages[0] is nan"),
        ([1, 2], [1, -4], "token", "RANGE", "action_tokens[1] is -4"),
        ([1, 2], [1.5, 4], "token", "RANGE", "action_tokens[0] is 1.5"),
        ([1, 2], [1, math.inf], "token", "NOT_FINITE", "action_tokens[1] is inf"),
        ([1, 2], [1, 2, 3], "token", "LENGTH", "2 advantages, 3 action_tokens"),
        ([1, 2], None, "token", "MISSING", "action_tokens"),
        ([[1, 2]], [1], "token", "SHAPE", "(1, 2)"),
        (["one"], [1], "token", "SHAPE", "advantages"),
        ([1, 2], [1, 2], "tokens", "UNKNOWN", "token, trajectory, none"),
    ],
)
def test_bad_input_is_refused_by_name_index_and_value(advantages, action_tokens, measure, code, words):
    with pytest.raises(ValueError) as refused:
        normalize(advantages, action_tokens, measure)
    assert isinstance(refused.value, BadInput) and refused.value.code == code
    assert words in str(refused.value)
