"""What a trajectory loses for its length: DAPO's Eq. 13."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advantage import BadInput, overlong


@given(st.integers(2, 400), st.data(), st.floats(0, 9))
def test_the_punishment_equals_equation_13(limit, data, most):
    buffer, length = data.draw(st.integers(1, limit - 1)), data.draw(st.integers(0, limit + 20))
    if length <= limit - buffer:
        expected = 0.0
    elif length <= limit:
        expected = ((limit - buffer) - length) / buffer
    else:
        expected = -1.0
    assert overlong([length], limit, buffer, most)[0] == pytest.approx(most * expected, rel=1e-12)


def test_each_trajectory_is_punished_for_its_own_length():
    np.testing.assert_array_equal(overlong([0, 80, 90, 100, 1000], limit=100, buffer=20), [0, 0, -0.5, -1, -1])
    np.testing.assert_array_equal(overlong([90], limit=100, buffer=20, most=0.2), [-0.1])
    assert overlong([], limit=100, buffer=20).shape == (0,)


def test_without_a_buffer_no_length_is_punished():
    np.testing.assert_array_equal(overlong([1, 100, 1000], limit=100, buffer=0), [0, 0, 0])


@pytest.mark.parametrize(
    ("lengths", "buffer", "words"),
    [
        ([1], 100, "expected 0 <= buffer < limit, found buffer = 100, limit = 100"),
        ([1], -1, "found buffer = -1"),
        ([3, -1], 10, "lengths[1] is -1"),
    ],
)
def test_bad_input_is_refused(lengths, buffer, words):
    with pytest.raises(BadInput) as refused:
        overlong(lengths, 100, buffer)
    assert refused.value.code == "RANGE" and words in str(refused.value)
