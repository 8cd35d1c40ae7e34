"""A run's lines as event files, read back byte by byte: every point once, whatever was begun twice."""

import json
import os
import signal
import struct
import subprocess
import sys

from tensorboardX.proto.event_pb2 import Event

from pipeline.config_file import load
from pipeline.run_folder import open_folder
from pipeline.tensorboard import FILES, EventFiles, follow, scalars
from tests.waiting import wait_for


def update(version, **changes):
    line = {"version": version, "time_ms": 1_000_000 + version, "reward": version / 10, "batch": "9f3c", "lr": 1e-4}
    line |= {"staleness": {"0": 1, "2": 3}, "wait_seconds": {"ready": 2.0}, "calibration": [[1, 0.5, 1.0]]}
    return line | changes


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def points(folder):
    """{(tag, step): value}; fails where a point is there twice."""
    found = {}
    for path in (folder / "tensorboard").glob(FILES):
        data = path.read_bytes()
        while len(data) > 8 and len(data) >= 16 + (size := struct.unpack("<Q", data[:8])[0]):
            # length, its checksum, an event, its checksum
            event, data = Event.FromString(data[12 : 12 + size]), data[16 + size :]
            for value in event.summary.value:
                assert (value.tag, event.step) not in found
                found[value.tag, event.step] = round(value.simple_value, 6)
    return found


def test_every_number_of_a_line_is_a_point_at_its_version(tmp_path):
    write(tmp_path / "metrics.jsonl", [update(0), update(1)])
    write(tmp_path / "evals.jsonl", [{"version": 1, "success": 0.5, "stderr": 0.1}])
    follow(tmp_path, on=False, say=lambda text: None)
    found = points(tmp_path)
    assert {tag: value for (tag, step), value in found.items() if step == 1} == {
        "train/reward": 0.1,
        "train/lr": 0.0001,
        "staleness/0": 0.25,
        "staleness/2": 0.75,
        "wait_seconds/ready": 2.0,
        "eval/success": 0.5,
        "eval/stderr": 0.1,
    }
    assert len(found) == 12


def test_a_second_start_doubles_no_point(tmp_path):
    for count in (2, 3):
        write(tmp_path / "metrics.jsonl", map(update, range(count)))
        follow(tmp_path, on=False, say=lambda text: None)
    assert sorted(step for tag, step in points(tmp_path) if tag == "train/reward") == [0, 1, 2]


def test_what_comes_is_written_and_what_a_trainer_makes_again_replaces_the_first(tmp_path):
    write(tmp_path / "metrics.jsonl", map(update, range(3)))
    files = EventFiles(tmp_path)
    files.look()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(update(3)) + "\n" + '{"version": 4, "torn')
    files.look()
    wait_for(lambda: ("train/reward", 3) in points(tmp_path))  # a thread writes
    write(tmp_path / "metrics.jsonl", [update(0), update(1), update(2, reward=0.9)])  # back to a checkpoint
    files.look()
    files.close()
    rewards = {step: value for (tag, step), value in points(tmp_path).items() if tag == "train/reward"}
    assert rewards == {0: 0.0, 1: 0.1, 2: 0.9}


def test_text_and_tables_are_no_points():
    line = {"version": 3, "batch": "9f", "skipped": True, "rows": [1], "environment": {"a": 2}}
    assert dict(scalars("train", line)) == {"train/skipped": 1.0, "environment/a": 2.0}


def test_the_command_follows_until_it_is_interrupted(headrace):
    headrace("init", "mine", "--recipe", "demo")
    folder = load("mine.toml").folder
    open_folder(load("mine.toml"))
    write(folder / "metrics.jsonl", [update(0)])
    argv = [sys.executable, "-u", "-m", "pipeline.cli", "tensorboard", "mine", "--follow"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert "5 points in" in process.stdout.readline()
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(update(1)) + "\n")
        wait_for(lambda: len(points(folder)) == 10)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_before_the_first_update_there_is_nothing_and_no_failure(headrace):
    headrace("init", "mine", "--recipe", "demo")
    open_folder(load("mine.toml"))
    code, out, _ = headrace("tensorboard", "mine")
    assert code == 0 and "0 points" in out
