"""The batch of one update: what is compared with what."""

import numpy as np
import pytest

from pipeline.config import Config
from tests.trainer.ledger import trajectory
from trainer.batch import TrainingFailed, advantages_of


def grouped(**advantage):
    return Config.model_validate(
        {
            "run": {"name": "groups"},
            "model": {"tiny": {}},
            "data": {"tasks": {"chain_sum": {}}},
            "buffers": {"group_size": 2},
            "advantage": {"algorithm": "dr_grpo"} | advantage,
        }
    )


def test_the_members_of_an_entry_are_one_group_and_another_visit_of_its_prompt_is_another():
    visits = [("first", 1.0), ("second", 1.0), ("first", 0.0), ("second", 1.0)]
    trajectories = [
        trajectory(seed, prompt_id="p", entry=entry, member=seed // 2, reward=reward)
        for seed, (entry, reward) in enumerate(visits)
    ]
    np.testing.assert_array_equal(advantages_of(trajectories, np.ones(4), grouped()), [0.5, 0, -0.5, 0])


@pytest.mark.parametrize("algorithm", ["dr_grpo", "rloo", "grpo"])
def test_the_largest_reward_that_a_trajectory_may_have_makes_advantages(algorithm):
    trajectories = [trajectory(n, entry="e", member=n, reward=reward) for n, reward in enumerate((1e6, -1e6))]
    found = advantages_of(trajectories, np.ones(2), grouped(algorithm=algorithm))
    assert 0.5 <= found[0] == -found[1] <= 2e6


def test_rewards_that_make_no_advantages_fail_the_run_with_a_sentence():
    """Which a penalty can do, of settings that nothing bounds."""
    trajectories = [trajectory(n, entry="e", member=n) for n in range(2)]
    config = grouped(overlong_buffer=2047, overlong_penalty=1e300)
    with pytest.raises(TrainingFailed, match=r"'dr_grpo' cannot use this batch: advantages\[0\] is .*begin a new run"):
        advantages_of(trajectories, np.ones(2), config)
