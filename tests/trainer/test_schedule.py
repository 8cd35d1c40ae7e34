"""The learning rate against transformers' own schedules, and what it is at its corners."""

import pytest
import torch
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from trainer.schedule import learning_rate


@pytest.mark.parametrize(
    ("name", "theirs"), [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)]
)
@pytest.mark.parametrize("warm_up", [0, 4])
def test_after_the_warm_up_a_schedule_is_that_of_transformers(name, theirs, warm_up):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-5)
    schedule = theirs(optimizer, warm_up, 30)
    expected = []
    for _ in range(30):
        expected.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    ours = [learning_rate(step, 3e-5, name, warm_up, 30) for step in range(1, 41)]
    assert ours[warm_up:30] == pytest.approx(expected[warm_up:30], rel=1e-12)
    assert 0 < ours[29] < 3e-6 and ours[30:] == [0.0] * 10, "no step of the schedule is without effect"


def test_a_warm_up_reaches_the_whole_rate_at_its_last_step():
    assert [learning_rate(step, 2.0, "cosine", 4, 9) for step in (1, 2, 3, 4, 5)] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert {learning_rate(step, 2.0, "constant", 4) for step in range(4, 99)} == {2.0}
    assert learning_rate(1, 2.0, "constant") == 2.0


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_the_lowest_rate_is_a_share_of_the_highest_and_stays(name):
    rates = [learning_rate(step, 2.0, name, 2, 12, lowest=0.25) for step in range(1, 30)]
    assert rates[2:13] == sorted(rates[2:13], reverse=True) and rates[2] == 2.0
    assert rates[12:] == [0.5] * 17
    assert rates[7] == pytest.approx(1.25), "half of the way between the two, halfway"
