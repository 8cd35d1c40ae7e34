"""What of a prompt's evidence outlives an update (SPO)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advantage import BadInput, retention

drifts = st.floats(0, 1e6)


def test_retention_halves_with_the_drift_between_its_bounds():
    assert retention(0.06 * math.log2(1 / 0.9)) == pytest.approx(0.9, rel=1e-12)
    assert retention(0.006) == pytest.approx(0.93303299, rel=1e-8)  # 2^(-1/10)


def test_a_first_visit_keeps_the_most_and_a_changed_policy_still_some():
    assert retention(0) == 0.96 == retention(0.003)
    assert retention(0.06) == 0.875 == retention(1e6)


@given(drifts, drifts)
def test_more_drift_never_keeps_more(one, other):
    assert retention(min(one, other)) >= retention(max(one, other))


@pytest.mark.parametrize("drift", [-0.1, math.nan, math.inf])
def test_a_drift_that_is_none_is_refused(drift):
    with pytest.raises(BadInput, match="expected a finite number of nats >= 0") as refused:
        retention(drift)
    assert refused.value.code == "RANGE"
