"""SPO differs from SPO++ in the measure alone, as far as advantages go."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advantage import BadInput, estimate

unit = st.floats(0, 1)


@given(st.lists(st.tuples(unit, unit, st.integers(0, 50)), min_size=1, max_size=20))
def test_the_advantage_is_reward_minus_value_whitened_over_trajectories(batch):
    rewards, values, lengths = map(list, zip(*batch, strict=True))
    advantages = [r - v for r, v in zip(rewards, values, strict=True)]
    mean = math.fsum(advantages) / len(batch)
    sigma = math.sqrt(math.fsum((a - mean) ** 2 for a in advantages) / max(len(batch) - 1, 1))
    expected = [(a - mean) / (sigma + 1e-8) for a in advantages]
    found = estimate("spo", rewards, values=values, action_tokens=lengths)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert abs(found.sum()) < 1e-9


def test_spo_is_the_ablation_of_spo_plus_plus_and_has_its_other_measures():
    rewards, values, lengths = [1.0, 0.0, 1.0, 0.0], [0.5, 0.25, 0.75, 0.5], [100, 400, 50, 900]
    for measure in ("trajectory", "token", "none"):
        spo = estimate("spo", rewards, values=values, action_tokens=lengths, normalization=measure)
        ablation = estimate("spo++", rewards, values=values, action_tokens=lengths, normalization=measure)
        np.testing.assert_array_equal(spo, ablation)
    own = estimate("spo", rewards, values=values, action_tokens=lengths)
    assert not np.allclose(own, estimate("spo++", rewards, values=values, action_tokens=lengths))


def test_values_are_needed():
    with pytest.raises(BadInput, match="spo needs values") as refused:
        estimate("spo", [1, 0], action_tokens=[1, 1])
    assert refused.value.code == "MISSING"
