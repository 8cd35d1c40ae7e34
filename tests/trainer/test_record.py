"""One line an update; the parts of its time never exceed the whole."""

import json
import time

import pytest

from pipeline.redis_client import connect
from trainer.record import WAITS, Record


@pytest.fixture
def record(redis_url, run, tmp_path):
    with connect(redis_url) as client:
        yield Record(client, run, tmp_path / "metrics.jsonl")


def write(record, version):
    return record.write(version, ["e0"], {"tokens": 100, "flops": 2e9})


def parts(line):
    return sum(line["wait_seconds"].values()) + line["step_seconds"]


def test_time_is_told_by_its_cause_and_never_exceeds_the_wall_clocks(record):
    began = time.monotonic()
    for doing in ("ready", "fetch", "update"):
        with record.timed(doing):
            time.sleep(0.03)
    line = write(record, 0)
    wall = time.monotonic() - began
    assert list(line["wait_seconds"]) == list(WAITS)
    assert line["wait_seconds"]["publish"] == line["wait_seconds"]["checkpoint"] == 0
    assert min(line["wait_seconds"]["ready"], line["wait_seconds"]["fetch"], line["step_seconds"]) >= 0.03
    assert line["idle_seconds"] == line["wait_seconds"]["ready"]
    assert parts(line) <= line["seconds"] + 1e-3
    assert 0.09 <= line["seconds"] < wall + 0.1, "the clock began when the record did"
    assert json.loads(record.file.read_text()) == line


def test_a_wait_within_a_wait_is_counted_once(record):
    with record.timed("publish"):
        time.sleep(0.02)
        with record.timed("checkpoint"):
            time.sleep(0.05)
        time.sleep(0.02)
    waits = (line := write(record, 0))["wait_seconds"]
    assert waits["publish"] >= 0.04
    assert waits["checkpoint"] >= 0.05
    assert parts(line) <= line["seconds"] + 1e-3


def test_what_comes_after_a_line_belongs_to_the_next_one_also_if_it_fails(record):
    with pytest.raises(OSError), record.timed("ready"):
        write(record, 0)
        time.sleep(0.03)
        raise OSError
    line = write(record, 1)
    assert line["wait_seconds"]["ready"] >= 0.03
    assert line["seconds"] >= 0.03
    assert parts(line) <= line["seconds"] + 1e-3


def test_tokens_and_flops_are_those_of_the_update_alone_and_mfu_is_told_where_the_peak_is_known(record):
    with record.timed("ready"):
        time.sleep(0.05)
    with record.timed("update"):
        time.sleep(0.02)
    line = write(record, 0)
    assert line["tokens_per_second"] == pytest.approx(100 / line["step_seconds"], rel=0.01)
    assert "mfu" not in line
    record.peak = 1e12
    with record.timed("update"):
        time.sleep(0.02)
    line = write(record, 1)
    assert line["mfu"] == pytest.approx(2e9 / line["step_seconds"] / 1e12, rel=0.01)
