"""A run's lines in W&B's own offline files, read back: what goes, what does not, and nothing twice."""

import json
import struct

import pytest

from pipeline.config_file import load
from pipeline.run_folder import open_folder
from pipeline.weights_and_biases import Sent, send


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def update(version):
    return {"version": version, "reward": version / 10, "batch": "9f3c", "wait_seconds": {"ready": 2.0}}


def records(data):
    """Of LevelDB's log format: blocks of 32 KiB; a record's header is checksum, length, kind (1: whole)."""
    at, rest = 7, b""
    while at + 7 < len(data):
        left = 32768 - at % 32768
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        if left < 7 or kind == 0:
            at += left
            continue
        rest += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield rest
            rest = b""


def test_lines_are_sent_once_however_often_it_is_begun(tmp_path):
    logged = []
    write(tmp_path / "metrics.jsonl", map(update, range(2)))
    write(tmp_path / "evals.jsonl", [{"version": 0, "success": 0.4}])
    first = Sent(tmp_path / "sent.json")
    assert send(tmp_path, first, logged.append) == 3
    assert logged[1] == {"version": 1, "train/reward": 0.1, "wait_seconds/ready": 2.0}
    write(tmp_path / "metrics.jsonl", map(update, range(3)))
    again = Sent(tmp_path / "sent.json")
    assert again.id == first.id, "the same run over there"
    assert send(tmp_path, again, logged.append) == 1
    assert [line["version"] for line in logged if "train/reward" in line] == [0, 1, 2]


def test_a_line_is_noted_before_it_goes(tmp_path):
    write(tmp_path / "metrics.jsonl", map(update, range(2)))

    def killed(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        send(tmp_path, Sent(tmp_path / "sent.json"), killed)
    logged = []
    send(tmp_path, Sent(tmp_path / "sent.json"), logged.append)
    assert [line["version"] for line in logged] == [1]


def test_the_command_writes_what_wandb_can_sync_later(headrace, monkeypatch):
    pytest.importorskip("wandb", reason="pip install 'headrace[wandb]' shows this test what W&B itself writes")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    headrace("init", "mine", "--recipe", "demo")
    folder = load("mine.toml").folder
    open_folder(load("mine.toml"))
    for count in (2, 3):
        write(folder / "metrics.jsonl", map(update, range(count)))
        code, out, err = headrace("wandb", "mine")
        assert code == 0, err
        assert "lines sent" in out
    rewards, text = [], ""
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in records(path.read_bytes()):
            record = Record.FromString(data)
            text += str(record)
            found = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
            if "train/reward" in found:
                rewards.append((int(found["version"]), float(found["train/reward"])))
    assert rewards == [(0, 0.0), (1, 0.1), (2, 0.2)]
    assert "9f3c" not in text and str(folder / "run.toml") not in text
