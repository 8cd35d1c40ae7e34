"""The paper's metrics against its equations, written out."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advantage import BadInput, metrics, normalize

curves = st.lists(st.floats(0, 1), min_size=1, max_size=60)
TEN = [0.0, 0.1, 0.3, 0.2, 0.4, 0.5, 0.6, 0.5, 0.8, 0.9]


@given(curves)
def test_auc_trapezoid_equals_equation_7(r):
    trapezoids = [(r[t] + r[t + 1]) / 2 for t in range(len(r) - 1)]
    expected = math.fsum(trapezoids) / (len(r) - 1) if len(r) > 1 else r[0]
    assert metrics.auc_trapezoid(r) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@given(curves)
def test_auc_mean_and_end_reward_are_plain_means(r):
    assert metrics.auc_mean(r) == pytest.approx(math.fsum(r) / len(r), rel=1e-12, abs=1e-300)
    assert metrics.end_reward(r) == pytest.approx(math.fsum(r[-5:]) / len(r[-5:]), rel=1e-12, abs=1e-300)


def test_the_named_numbers_of_a_ten_step_curve():
    assert metrics.auc_trapezoid(TEN) == pytest.approx(3.85 / 9)
    assert metrics.auc_mean(TEN) == pytest.approx(0.43)
    assert metrics.end_reward(TEN) == pytest.approx(0.66)
    assert metrics.learning_composite(TEN) == pytest.approx((3.85 / 9 + 0.66) / 2)


def test_the_learning_composite_is_of_the_first_ten_points():
    assert metrics.learning_composite([*TEN, 5.0, 5.0]) == metrics.learning_composite(TEN)
    with pytest.raises(BadInput, match="needs 10 points, found 9"):
        metrics.learning_composite(TEN[:9])


def test_matched_runs_are_cut_before_anything_is_computed():
    run, baseline = metrics.matched([0.2, 0.4, 1.0, 1.0], [0.1, 0.2])
    assert run.tolist() == [0.2, 0.4] and baseline.tolist() == [0.1, 0.2]
    assert metrics.paired_difference([[0.2, 0.4, 1.0, 1.0]], [[0.1, 0.2]]).mean == pytest.approx(0.15)


def test_a_paired_difference_has_the_mean_and_sample_deviation_over_pairs():
    runs, baselines = [[0.5, 0.7], [0.4, 0.4], [0.9, 0.9]], [[0.4, 0.4], [0.3, 0.3], [0.5, 0.5]]
    difference = metrics.paired_difference(runs, baselines, metrics.auc_mean)
    assert difference.differences == pytest.approx((0.2, 0.1, 0.4))
    assert difference.mean == pytest.approx(0.7 / 3)
    assert difference.sd == pytest.approx(math.sqrt(sum((d - 0.7 / 3) ** 2 for d in (0.2, 0.1, 0.4)) / 2))


def test_one_pair_has_no_sample_deviation():
    assert math.isnan(metrics.paired_difference([[1.0]], [[0.5]]).sd)


def test_the_actor_center_weighs_by_action_tokens():
    assert metrics.actor_center([1, -1, 5], [3, 1, 0]) == 0.5
    assert metrics.actor_center([1, -1], [0, 0]) == 0
    assert metrics.actor_center([], []) == 0


batches = st.lists(st.tuples(st.floats(-1, 1), st.integers(0, 400)), max_size=40)


@given(batches)
def test_the_mismatch_of_the_measures_is_both_sides_of_equation_5(batch):
    advantages, lengths = [a for a, _ in batch], [n for _, n in batch]
    whitened = normalize(advantages, measure="trajectory")
    found = metrics.measure_mismatch(advantages, lengths)
    assert found == pytest.approx(metrics.actor_center(whitened, lengths), abs=1e-6), "its left side"
    if not sum(lengths):
        return
    n, mean = len(batch), sum(lengths) / len(batch)
    covariance = math.fsum((length - mean) * a for length, a in zip(lengths, whitened, strict=True)) / n
    assert found == pytest.approx(covariance / mean, abs=1e-6), "its right side, n as the divisor"


def test_the_mismatch_is_that_of_what_is_whitened_whatever_was_done_to_the_advantages_before():
    rewards, lengths = [1, 0, 0, 1], [10, 48, 48, 21]
    expected = metrics.measure_mismatch(rewards, lengths)
    assert expected < -0.3
    by_token = normalize(rewards, lengths, "token")
    assert metrics.actor_center(by_token, lengths) == pytest.approx(0, abs=1e-12)
    assert metrics.measure_mismatch(by_token, lengths) == pytest.approx(expected)
    assert metrics.measure_mismatch([1, 1, 1], [1, 2, 3]) == metrics.measure_mismatch([], []) == 0


def test_the_correlation_of_length_and_advantage_has_a_sign_and_none_where_one_is_constant():
    assert metrics.length_correlation([1, 0, 0.5], [10, 30, 20]) == pytest.approx(-1)
    assert metrics.length_correlation([1, 0], [5, 5]) == metrics.length_correlation([1, 1], [5, 6]) == 0
    assert metrics.length_correlation([], []) == 0


def test_the_reliability_of_values_is_counted_in_tenths():
    found = metrics.reliability([0.05, 0.07, 0.5, 1.0], [0, 1, 1, 1])
    assert found.shape == (10, 3)
    assert {k: row.tolist() for k, row in enumerate(found) if row[0]} == {
        0: pytest.approx([2, 0.12, 1]),
        5: [1, 0.5, 1],
        9: [1, 1, 1],
    }


def test_the_brier_score_is_the_mean_squared_error_of_the_values():
    assert metrics.brier([0.5, 0.9, 0.2], [1, 1, 0]) == pytest.approx((0.25 + 0.01 + 0.04) / 3)


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (lambda: metrics.auc_trapezoid([]), "EMPTY", "at least one point"),
        (lambda: metrics.auc_mean([0.1, math.nan]), "NOT_FINITE", "rewards[1] is nan"),
        (lambda: metrics.end_reward([]), "EMPTY", "at least one point"),
        (lambda: metrics.paired_difference([[1.0]], []), "LENGTH", "1 runs, 0 baselines"),
        (lambda: metrics.paired_difference([], []), "EMPTY", "at least one pair"),
        (lambda: metrics.brier([0.5, 1.2], [1, 1]), "RANGE", "values[1] is 1.2"),
        (lambda: metrics.brier([], []), "EMPTY", "at least one value"),
        (lambda: metrics.actor_center([1], [1, 2]), "LENGTH", "1 advantages, 2 action_tokens"),
    ],
)
def test_bad_curves_are_refused(call, code, words):
    with pytest.raises(BadInput) as refused:
        call()
    assert refused.value.code == code and words in str(refused.value)
