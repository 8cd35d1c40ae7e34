"""The weight of a prompt in the draw."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advantage import BadInput, sampling_weight


def test_the_weight_is_the_standard_deviation_of_the_outcome_plus_a_floor():
    assert sampling_weight(0.5) == pytest.approx(0.55, abs=1e-15)
    assert sampling_weight(0.2) == pytest.approx(0.45, abs=1e-15)
    assert sampling_weight(0) == sampling_weight(1) == 0.05


@given(st.floats(0, 1))
def test_every_prompt_can_be_drawn_and_an_even_one_most(value):
    assert 0.05 <= sampling_weight(value) <= sampling_weight(0.5)


@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf])
def test_a_value_outside_0_to_1_is_refused(value):
    with pytest.raises(BadInput, match="value is"):
        sampling_weight(value)
