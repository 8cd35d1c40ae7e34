"""REINFORCE++: rewards against the mean of the update, under the measure of its tokens."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from advantage import estimate

batches = st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(0, 50)), min_size=1, max_size=20)


def advantages(batch):
    return estimate("reinforce++", [reward for reward, _ in batch], action_tokens=[length for _, length in batch])


@given(batches)
@example([(-1000.0, 1), (-999.9999999999999, 1)])
def test_a_reward_is_measured_by_all_tokens_of_the_update(batch):
    """Only the root is rounded: two rewards may differ by a single bit."""
    tokens = [Fraction(reward) for reward, length in batch for _ in range(length)]
    expected = [0.0] * len(batch)
    if len(set(tokens)) > 1:
        mean = sum(tokens) / len(tokens)
        sigma = math.sqrt(sum((r - mean) ** 2 for r in tokens) / (len(tokens) - 1))
        expected = [float((Fraction(reward) - mean) / Fraction(sigma + 1e-8)) for reward, _ in batch]
    np.testing.assert_allclose(advantages(batch), expected, rtol=1e-7, atol=1e-7)


@given(batches, st.randoms(use_true_random=False))
def test_the_order_of_trajectories_does_not_matter(batch, random):
    order = list(range(len(batch)))
    random.shuffle(order)
    np.testing.assert_allclose(advantages([batch[i] for i in order]), advantages(batch)[order], rtol=1e-9, atol=1e-9)


@given(batches, st.integers(-100, 100))
def test_what_is_paid_to_everyone_changes_nothing(batch, bonus):
    whole = [(round(reward), length) for reward, length in batch]
    shifted = [(reward + bonus, length) for reward, length in whole]
    np.testing.assert_allclose(advantages(shifted), advantages(whole), rtol=1e-9, atol=1e-9)


def test_values_and_groups_play_no_part_and_the_measure_may_be_another():
    rewards, lengths = [1.0, 0.0, 0.5], [3, 4, 5]
    plain = estimate("reinforce++", rewards, action_tokens=lengths)
    told = estimate("reinforce++", rewards, action_tokens=lengths, values=[0.1, 0.2, 0.9], groups=["a", "a", "b"])
    np.testing.assert_array_equal(plain, told)
    by_trajectory = estimate("reinforce++", rewards, action_tokens=lengths, normalization="trajectory")
    np.testing.assert_allclose(by_trajectory, [1, -1, 0], atol=1e-7)
