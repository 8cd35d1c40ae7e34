import itertools
import time

import pytest

from pipeline.config_training import Trainer as Settings
from pipeline.redis_client import connect
from trainer.metrics import TrainerMetrics
from trainer.record import Record


@pytest.fixture
def record(redis_url, run, tmp_path):
    with connect(redis_url) as client:
        yield Record(client, run, tmp_path / "metrics.jsonl")


def told(metrics):
    return {f.name: {tuple(labels.values()): value for labels, value in f.samples} for f in metrics.families()}


def test_gauges_are_the_newest_updates_and_counters_add_up(record):
    metrics = TrainerMetrics(record, Settings(mismatch_alarm=0.25))
    assert told(metrics)["headrace_updates_total"] == {(): 0} and "headrace_reward" not in told(metrics)
    record.write(0, ["e0"], {"tokens": 100, "flops": 1, "action_tokens": 40, "trajectories": 4, "reward": 0.1})
    record.write(
        1,
        ["e1"],
        {"tokens": 200, "flops": 1, "action_tokens": 60, "trajectories": 4, "reward": 0.6, "peak_memory_gib": 2},
    )
    found = told(metrics)
    assert found["headrace_updates_total"] == {(): 2} and found["headrace_trained_tokens_total"] == {(): 300}
    assert found["headrace_trained_action_tokens_total"] == {(): 100}
    assert found["headrace_reward"] == {(): 0.6} and found["headrace_mismatch_alarm_nats"] == {(): 0.25}
    assert found["headrace_trainer_peak_memory_bytes"] == {(): 2 << 30}
    assert "headrace_loss" not in found, "the line does not have it"


def test_a_publication_is_told_until_the_next_one(record):
    metrics = TrainerMetrics(record, Settings())
    with record.timed("publish"):
        record.publish_bytes += 800
    first = record.write(0, ["e0"], {"tokens": 1, "flops": 1})
    second = record.write(1, ["e1"], {"tokens": 1, "flops": 1})
    assert first["publish_bytes"] == 800 and first["publish_seconds"] == first["wait_seconds"]["publish"]
    assert not {"publish_bytes", "publish_seconds"} & second.keys()
    assert told(metrics)["headrace_publication_bytes"] == {(): 800}
    with record.timed("publish"):
        record.publish_bytes += 700
    record.write(2, ["e2"], {"tokens": 1, "flops": 1})
    assert told(metrics)["headrace_publication_bytes"] == {(): 700}


def test_time_is_told_by_its_cause_also_while_it_passes(record):
    metrics = TrainerMetrics(record, Settings())
    seen = []

    def spent():
        seen.append(told(metrics)["headrace_trainer_seconds_total"])
        return seen[-1]

    with record.timed("ready"):
        time.sleep(0.05)
        assert spent()[("ready",)] >= 0.05 and seen[-1][("update",)] == 0
    with record.timed("update"):
        time.sleep(0.05)
    assert spent()[("update",)] >= 0.05
    line = record.write(0, ["e0"], {"tokens": 1, "flops": 1})
    assert spent()[("ready",)] == pytest.approx(line["wait_seconds"]["ready"], abs=1e-3)
    assert spent()[("update",)] == pytest.approx(line["step_seconds"], abs=1e-3)
    assert set(seen[0]) == {("update",), ("ready",), ("fetch",), ("publish",), ("checkpoint",)}
    for before, after in itertools.pairwise(seen):
        assert all(after[cause] >= seconds for cause, seconds in before.items()), "a counter never falls"
