"""The numbers that public code gives for the same batch, computed with that code in float64.

    volcengine/verl b178a3cd         verl/trainer/ppo/core_algos.py, compute_*_outcome_advantage; reward_manager/dapo.py
    verl-project/verl-recipe 48ea0a79    spo/spo_ray_trainer.py, the lines of its advantages and of rho_clipped

Where they differ, it is on purpose: theirs gives a group of one its bare reward, ours 0.
"""

import numpy as np
import pytest

from advantage import estimate, overlong, retention

REWARDS = [1.0, 0.0, 0.25, 1.0, 0.5, -0.75, 1.0, 0.0, 0.125]
VALUES = [0.5, 0.25, 0.75, 0.5, 0.375, 0.25, 0.9, 0.125, 0.5]
LENGTHS = [3, 5, 2, 7, 4, 1, 6, 2, 8]
GROUPS = ["a", "b", "a", "a", "b", "c", "b", "a", "c"]

GRPO = [
    *(0.848873040572, -0.999998000004, -0.606337886123, 0.848873040572, 0.0),
    *(-0.707105638331, 0.999998000004, -1.091408195021, 0.707105638331),
]


@pytest.mark.parametrize(
    ("algorithm", "numbers"),
    [
        ("grpo", GRPO),
        ("dapo", GRPO),
        ("gspo", GRPO),
        # grpo with norm_adv_by_std_in_grpo = False
        ("dr_grpo", [0.4375, -0.5, -0.3125, 0.4375, 0.0, -0.4375, 0.5, -0.5625, 0.4375]),
        ("rloo", [0.583333333333, -0.75, -0.416666666667, 0.583333333333, 0.0, -0.875, 0.75, -0.75, 0.875]),
        (
            "reinforce++",
            [
                *(1.053148013147, -1.025793518766, -0.506058135788, 1.053148013147, 0.01367724719),
                *(-2.5849996677, 1.053148013147, -1.025793518766, -0.765925827277),
            ],
        ),
        (
            "spo",
            [
                *(1.267152024093, -0.280952258735, -0.796987019678, 1.267152024093, 0.493099882679),
                *(-1.829056541564, 0.441496406584, -0.022934878264, -0.538969639207),
            ],
        ),
        # masked_whiten of R - v: no code of SPO++ is public, but its measure is
        (
            "spo++",
            [
                *(1.313796532019, -0.616265383586, -1.259619355455, 1.313796532019, 0.348765574216),
                *(-2.546327299192, 0.284430177029, -0.294588397652, -0.937942369521),
            ],
        ),
    ],
)
def test_advantages_are_those_of_public_code(algorithm, numbers):
    found = estimate(algorithm, REWARDS, values=VALUES, action_tokens=LENGTHS, groups=GROUPS)
    # masked_whiten adds its 1e-8 to the variance, ours to the standard deviation
    np.testing.assert_allclose(found, numbers, rtol=0, atol=3e-8)


def test_retention_is_that_of_public_code():
    drifts = [0.0, 0.002, 0.005, 0.0078125, 0.01, 0.02, 1.0]
    numbers = [0.96, 0.96, 0.9438743126816935, 0.9136994973209132, 0.8908987181403393, 0.875, 0.875]
    assert [retention(drift) for drift in drifts] == pytest.approx(numbers, rel=1e-12)


def test_the_overlong_punishment_is_that_of_public_code():
    numbers = [0, 0, 0, 0, -0.00980392156862745, -0.24509803921568626, -0.49019607843137253, -0.5]
    found = overlong([1, 100, 204, 205, 206, 230, 255, 256], limit=256, buffer=51, most=0.5)
    np.testing.assert_allclose(found, numbers, rtol=1e-12)
