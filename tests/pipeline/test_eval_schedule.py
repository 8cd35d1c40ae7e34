import json
import time

import pytest

from pipeline import evals, keys
from pipeline.eval_schedule import EvalSchedule

RESULT = {"success": 0.5, "stderr": 0.02, "trajectories": 512, "seconds": 3.5}


@pytest.fixture
def schedule(client, run):
    """Every 10 updates, of 25."""
    return EvalSchedule(client, run, every=10, last_version=25, timeout_s=300, lease_s=15)


def evaluate(client, run, version):
    assert evals.claim(client, run, "worker-0") == version
    assert evals.finish(client, run, version, "worker-0", **RESULT)


def served(client, run, schedule, versions):
    """Versions of those served that were evaluated."""
    evaluated = []
    for version in versions:
        if schedule.served(version):
            evaluated.append(version)
            evaluate(client, run, version)
    return evaluated


def test_the_first_version_each_multiple_and_the_last_one_are_evaluated(client, run, schedule):
    assert served(client, run, schedule, [*range(26), 25, 25]) == [0, 10, 20, 25]


def test_where_versions_are_skipped_the_next_one_served_is_evaluated(client, run, schedule):
    assert served(client, run, schedule, [0, 4, 8, 12, 16, 21, 24, 25]) == [0, 12, 21, 25]


def test_a_coordinator_started_again_goes_on_with_the_same_schedule(client, run, schedule):
    assert served(client, run, schedule, range(13)) == [0, 10]
    again = EvalSchedule(client, run, every=10, last_version=25, timeout_s=300, lease_s=15)
    assert served(client, run, again, range(12, 26)) == [20, 25]


def test_engines_are_held_until_the_evaluation_is_over(client, run, schedule):
    assert schedule.held() is None and schedule.served(0)
    assert schedule.held() == 0
    evals.claim(client, run, "worker-0")
    assert schedule.held() == 0
    evals.finish(client, run, 0, "worker-0", **RESULT)
    assert schedule.held() is None


@pytest.mark.parametrize(("worker", "why"), [("", "no worker took it up for"), ("worker-0", "worker-0 took")])
def test_an_evaluation_that_takes_too_long_lets_the_engines_go(client, run, worker, why):
    schedule = EvalSchedule(client, run, every=10, last_version=25, timeout_s=0.1, lease_s=15)
    schedule.served(0)
    if worker:
        evals.claim(client, run, worker)
    time.sleep(0.15)
    assert schedule.held() == 0 and schedule.held() is None
    assert evals.read(client, run, 0).error == f"{why} longer than eval.timeout_s = 0.1"


def test_another_worker_takes_over_from_one_whose_lease_ran_out(client, run, schedule):
    schedule.served(0)
    evals.claim(client, run, "worker-0")
    schedule.held()  # just claimed: its first renewal may be on the way
    assert evals.read(client, run, 0).worker == "worker-0"
    client.hset(keys.evaluation(run, 0), "claimed_ms", round(1000 * (time.time() - 20)))
    client.zadd(keys.workers(run), {"worker-0": 1})
    schedule.held()
    assert evals.read(client, run, 0).worker == "worker-0"
    client.zrem(keys.workers(run), "worker-0")
    schedule.held()
    assert evals.claim(client, run, "worker-1") == 0


def test_each_result_is_one_line_of_the_file_however_many_coordinators_write(client, run, schedule, tmp_path):
    path = tmp_path / "evals.jsonl"
    other = EvalSchedule(client, run, every=10, last_version=25, timeout_s=300, lease_s=15)
    schedule.archive(path)
    assert not path.exists()
    for version in (0, 10, 20):
        schedule.served(version)
        if version == 10:
            evals.fail(client, run, 10, "", "no engine answered")
        else:
            evaluate(client, run, version)
        for each in (schedule, other, schedule):
            each.archive(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"version": 0} | RESULT, {"version": 20} | RESULT]
