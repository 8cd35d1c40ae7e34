"""GRPO (DAPO, GSPO), Dr. GRPO and RLOO against their papers' formulas in exact rational arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from advantage import BY_GROUP, BadInput, estimate

# Rewards as environments give them, and any others; tenths do not add up exactly.
rewards = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.1, 0.7]), st.floats(-1e6, 1e6))
batches = st.lists(st.tuples(rewards, st.sampled_from("abcd")), min_size=1, max_size=30)  # groups of any sizes
algorithms = st.sampled_from(sorted(BY_GROUP))


def advantages(algorithm, batch):
    return estimate(algorithm, [reward for reward, _ in batch], groups=[group for _, group in batch])


def group_of(batch, i):
    return [Fraction(reward) for reward, group in batch if group == batch[i][1]]


def oracle(batch, formula):
    """`formula(R_i, rewards of its group)` for each trajectory, one at a time."""
    return [float(formula(Fraction(reward), group_of(batch, i))) for i, (reward, _) in enumerate(batch)]


def grpo_formula(reward, group):
    """2402.03300, 4.1.2: (r_i - mean(r)) / std(r), with the 1e-6 of public code; without spread 0."""
    if len(set(group)) == 1:
        return 0
    mean = sum(group) / len(group)
    std = math.sqrt(sum((r - mean) ** 2 for r in group) / (len(group) - 1))
    return (reward - mean) / (Fraction(std) + Fraction(1e-6))


def dr_grpo_formula(reward, group):
    """2503.20783, 3.2: R_i - mean(R)."""
    return reward - sum(group) / len(group)


def rloo_formula(reward, group):
    """2402.14740: R_i - 1/(k - 1) Σ_{j≠i} R_j; alone, there is nobody to compare with."""
    return reward - (sum(group) - reward) / (len(group) - 1) if len(group) > 1 else 0


FORMULAS = {
    "grpo": grpo_formula,
    "dapo": grpo_formula,
    "gspo": grpo_formula,
    "dr_grpo": dr_grpo_formula,
    "rloo": rloo_formula,
}


@pytest.mark.parametrize("algorithm", BY_GROUP)
@given(batch=batches)
def test_every_group_algorithm_equals_its_papers_formula(algorithm, batch):
    expected = oracle(batch, FORMULAS[algorithm])
    np.testing.assert_allclose(advantages(algorithm, batch), expected, rtol=1e-9, atol=1e-9)


@given(algorithms, batches)
def test_advantages_of_a_group_add_up_to_0(algorithm, batch):
    found = advantages(algorithm, batch)
    for name in {group for _, group in batch}:
        own = [(a, reward) for a, (reward, group) in zip(found, batch, strict=True) if group == name]
        assert abs(math.fsum(a for a, _ in own)) <= 1e-12 * max(1.0, math.fsum(abs(reward) for _, reward in own))


@given(algorithms, batches, st.randoms(use_true_random=False))
def test_the_order_of_trajectories_does_not_matter(algorithm, batch, random):
    order = list(range(len(batch)))
    random.shuffle(order)
    shuffled = advantages(algorithm, [batch[i] for i in order])
    np.testing.assert_allclose(shuffled, advantages(algorithm, batch)[order], rtol=1e-9, atol=1e-9)


@given(algorithms, batches, st.dictionaries(st.sampled_from("abcd"), st.integers(-8, 8)))
def test_what_a_prompt_pays_to_everyone_changes_nothing(algorithm, batch, bonus):
    whole = [(round(reward), group) for reward, group in batch]  # so that adding is exact
    shifted = [(reward + bonus.get(group, 0), group) for reward, group in whole]
    np.testing.assert_allclose(advantages(algorithm, shifted), advantages(algorithm, whole), rtol=1e-9, atol=1e-9)


@given(algorithms, batches)
def test_a_group_is_measured_by_itself_alone(algorithm, batch):
    found = advantages(algorithm, batch)
    for name in {group for _, group in batch}:
        own = [i for i, (_, group) in enumerate(batch) if group == name]
        np.testing.assert_array_equal(found[own], advantages(algorithm, [batch[i] for i in own]))


@given(algorithms, rewards, st.integers(1, 9))
def test_a_group_of_one_and_a_group_of_equals_have_no_advantage_at_all(algorithm, reward, size):
    assert (advantages(algorithm, [(reward, "a")] * size) == 0).all()


@given(batches, st.integers(1, 1000))
def test_only_grpo_forgets_how_large_the_rewards_are(batch, factor):
    spreads = [np.ptp([float(r) for r in group_of(batch, i)]) for i in range(len(batch))]
    assume(all(spread == 0 or spread > 1 for spread in spreads))  # far above 1e-6
    larger = [(reward * factor, group) for reward, group in batch]
    for algorithm, expected in (("grpo", 1), ("dr_grpo", factor), ("rloo", factor)):
        scaled = expected * advantages(algorithm, batch)
        np.testing.assert_allclose(advantages(algorithm, larger), scaled, rtol=1e-5, atol=1e-9)


@given(batches)
def test_leave_one_out_is_the_group_mean_but_for_a_factor(batch):
    sizes = np.array([len(group_of(batch, i)) for i in range(len(batch))])
    factor = sizes / np.maximum(sizes - 1, 1)
    np.testing.assert_allclose(advantages("rloo", batch), factor * advantages("dr_grpo", batch), rtol=1e-12)


@pytest.mark.parametrize("algorithm", BY_GROUP)
def test_values_and_lengths_play_no_part_and_a_member_without_action_tokens_is_one(algorithm):
    plain = estimate(algorithm, [1, 0, 0, 1], groups=[7, 7, 7, 8])
    told = estimate(
        algorithm, [1, 0, 0, 1], groups=[7, 7, 7, 8], values=[0.5, 0.1, 0.9, 0.3], action_tokens=[5, 0, 90, 1]
    )
    np.testing.assert_array_equal(plain, told)
    assert plain[0] > 0 > plain[1] == plain[2] and plain[3] == 0


@pytest.mark.parametrize("algorithm", BY_GROUP)
def test_groups_are_needed_and_a_normalization_is_refused(algorithm):
    with pytest.raises(BadInput, match="needs groups") as refused:
        estimate(algorithm, [1, 0])
    assert refused.value.code == "MISSING"
    with pytest.raises(BadInput, match=f"{algorithm} normalizes within groups; found normalization = 'token'"):
        estimate(algorithm, [1, 0], groups=[1, 1], normalization="token")


@pytest.mark.parametrize("algorithm", BY_GROUP)
def test_an_empty_batch_has_no_advantages(algorithm):
    assert estimate(algorithm, [], groups=[]).shape == (0,)


def test_an_advantage_that_float32_cannot_hold_is_refused():
    with pytest.raises(BadInput, match=r"advantages\[0\] is 5e\+38, expected what float32 can hold; scale the rewards"):
        estimate("dr_grpo", [1e39, 0], groups=["a", "a"])
    with pytest.raises(BadInput, match="what float32 can hold"):
        estimate("rloo", [1.7e308, -1.7e308], groups=["a", "a"])
    assert np.isfinite(estimate("grpo", [1.7e308, -1.7e308], groups=["a", "a"])).all()
