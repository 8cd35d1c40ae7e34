"""The batch of one update: what is compared with what."""

import numpy as np

from pipeline.config import Config
from tests.trainer.ledger import trajectory
from trainer.batch import advantages_of


def test_the_members_of_an_entry_are_one_group_and_another_visit_of_its_prompt_is_another():
    config = Config.model_validate(
        {
            "run": {"name": "groups"},
            "model": {"tiny": {}},
            "data": {"tasks": {"chain_sum": {}}},
            "buffers": {"group_size": 2},
            "advantage": {"algorithm": "dr_grpo"},
        }
    )
    visits = [("first", 1.0), ("second", 1.0), ("first", 0.0), ("second", 1.0)]
    trajectories = [
        trajectory(seed, prompt_id="p", entry=entry, member=seed // 2, reward=reward)
        for seed, (entry, reward) in enumerate(visits)
    ]
    np.testing.assert_array_equal(advantages_of(trajectories, np.ones(4), config), [0.5, 0, -0.5, 0])
