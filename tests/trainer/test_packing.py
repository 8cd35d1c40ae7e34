"""Plans and packed rows: pure functions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.ledger import trajectory
from trainer.packing import pack, plan

LAYOUTS = ("flat", "rows", "alone")


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=60),
    st.integers(1, 600),
    st.integers(1, 4),
    st.sampled_from(LAYOUTS),
)
def test_a_plan_places_every_trajectory_once_within_the_budget(lengths, budget, ranks, layout):
    planned = plan(lengths, budget, ranks, layout)
    assert sorted(i for rank in planned for rows in rank for row in rows for i in row) == list(range(len(lengths)))
    assert len({len(rank) for rank in planned}) == 1, "collectives must match"
    for rank in planned:
        for rows in rank:
            width = max((sum(lengths[i] for i in row) for row in rows), default=0)
            longest = max((lengths[i] for row in rows for i in row), default=0)
            assert len(rows) <= 1 if layout == "flat" else width == longest, "as wide as the longest"
            assert len(rows) * width <= budget or sum(map(len, rows)) == 1, "a longer one alone"
            assert layout != "alone" or all(len(row) == 1 for row in rows)


def test_ranks_get_equal_shares_of_the_tokens():
    lengths = np.random.default_rng(0).lognormal(5, 0.8, 200).astype(int).tolist()
    loads = [sum(lengths[i] for rows in rank for row in rows for i in row) for rank in plan(lengths, 4096, 4)]
    assert max(loads) - min(loads) <= max(lengths)


def test_ranks_get_equal_shares_of_the_cost():
    lengths = np.random.default_rng(0).lognormal(5, 1.2, 200).astype(int).tolist()

    costs = [length + 0.01 * length**2 for length in lengths]

    def heaviest(costs_known):
        planned = plan(lengths, 4096, 4, costs=costs_known)
        loads = [sum(costs[i] for rows in rank for row in rows for i in row) for rank in planned]
        return max(loads) / np.mean(loads) - 1

    assert heaviest(costs) < heaviest(None) / 10


def test_a_flat_plan_has_as_few_micro_batches_as_possible_and_they_are_about_as_full():
    lengths = np.random.default_rng(1).lognormal(5, 0.8, 200).astype(int).tolist()
    (batches,) = plan(lengths, 8192)
    tokens = [sum(lengths[i] for row in rows for i in row) for rows in batches]
    assert len(batches) == -(-sum(lengths) // 8192)
    assert max(tokens) - min(tokens) < min(lengths) + max(lengths) / 10


def test_little_is_padded():
    lengths = np.random.default_rng(1).lognormal(5, 0.8, 200).astype(int).tolist()
    (batches,) = plan(lengths, 8192, layout="rows")
    cells = sum(len(rows) * max(lengths[i] for row in rows for i in row) for rows in batches)
    assert sum(lengths) / cells > 0.93


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_rows_hold_tokens_positions_and_only_action_targets(layout):
    trajectories = [trajectory(seed) for seed in range(9)]
    (batches,) = plan([len(t.tokens) for t in trajectories], 200, layout=layout)
    seen = []
    for rows in batches:
        batch = pack(rows, trajectories)
        flat = batch.tokens.flatten()
        assert sum(batch.lengths) == len(flat), "borders cover every cell"
        place = 0
        for member, count in zip(batch.members, batch.counts, strict=True):
            t = trajectories[member]
            actions = np.flatnonzero(t.loss_mask)
            assert count == len(actions) == t.action_tokens
            mine = slice(place, place + count)
            assert batch.targets[mine].tolist() == t.tokens[actions].tolist()
            sources = batch.sources[mine]
            assert flat[sources].tolist() == t.tokens[actions - 1].tolist()
            assert batch.positions.flatten()[sources].tolist() == (actions - 1).tolist()
            assert batch.rollout[mine].tolist() == t.rollout_logprobs[actions].tolist()
            place += count
            seen.append(member)
        assert place == len(batch.sources)
    assert sorted(seen) == list(range(9))


def test_no_rows_still_make_a_forward_pass():
    batch = pack([], [])
    assert batch.tokens.shape == (1, 1)
    assert len(batch.targets) == 0 == len(batch.rollout)
