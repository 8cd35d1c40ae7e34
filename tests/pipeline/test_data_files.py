"""Every kind of file, written by the library that a user would write it with."""

import datetime
import json
import sys
import warnings
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from pipeline.data_files import Unusable, rows, stem
from pipeline.errors import ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its import's own
    import datasets

ROWS = [{"prompt": [{"content": "a", "role": "user"}], "label": "34"}, {"prompt": [], "label": "35"}]


def read(path, section="data"):
    return list(rows(Path(path), section))


def test_json_lines_are_numbered_with_their_blank_ones(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'{"question": "a"}\n\n{\n\xff\xfe\n[1]\n')
    first, *others = read(path)
    assert first == ("line 1", {"question": "a"})
    assert [place for place, _ in others] == ["line 3", "line 4", "line 5"]
    assert all(isinstance(row, Unusable) for _, row in others)


def test_a_line_separator_inside_a_string_ends_no_line(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "a\u2028b"}\r\n{"question": "c"}', encoding="utf-8")
    assert [row for _, row in read(path)] == [{"question": "a\u2028b"}, {"question": "c"}]


def test_a_parquet_file_gives_rows_that_survive_json(tmp_path):
    path = tmp_path / "train.parquet"
    table = [row | {"day": datetime.date(2026, 1, n + 1)} for n, row in enumerate(ROWS)]
    parquet.write_table(pyarrow.Table.from_pylist(table), path)
    found = read(path)
    assert found[0] == ("row 1", ROWS[0] | {"day": "2026-01-01"})
    assert [place for place, _ in found] == ["row 1", "row 2"]
    assert json.loads(json.dumps(found[1][1])) == found[1][1]


def test_a_saved_data_set_is_read_by_its_folder_and_split(tmp_path):
    alone, several = tmp_path / "alone", tmp_path / "several"
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(alone)
    datasets.DatasetDict(train=data, test=data.select([1])).save_to_disk(several)
    assert [row for _, row in read(alone)] == ROWS
    assert [row for _, row in read(f"{several}@test")] == ROWS[1:]
    with pytest.raises(ConfigError, match="expected the name of a split behind an @, one of train, test"):
        read(several)
    with pytest.raises(ConfigError, match="it has no splits; leave out @train"):
        read(f"{alone}@train")


def test_ids_begin_with_the_name_of_what_they_are_in():
    names = ["a/train.jsonl", "hf:openai/gsm8k:main@train", "saved/set@train", "v1.2/train.v1.parquet"]
    assert [stem(Path(name)) for name in names] == ["train", "gsm8k", "set", "train.v1"]


def test_what_cannot_be_read_says_what_was_expected(tmp_path):
    (tmp_path / "x.parquet").write_text("no table")
    for path, message in (
        (
            tmp_path / "none.jsonl",
            "eval.data.path = .*none.jsonl: no such file; expected JSON lines, .parquet, a folder",
        ),
        (tmp_path / "none@train", "no such file"),
        (tmp_path / "x.parquet", "cannot be read as Parquet"),
        (tmp_path, "expected a folder that Dataset.save_to_disk wrote, found: FileNotFoundError"),
    ):
        with pytest.raises(ConfigError, match=message):
            read(path, "eval.data")


def test_a_data_set_of_the_hub_without_a_network_says_what_to_do(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConfigError, match=r"(?s)data.path = hf:no-such/set: cannot be loaded: .*save_to_disk\(FOLDER\)"
    ):
        read("hf:no-such/set")


@pytest.mark.parametrize(("module", "name"), [("pyarrow", "x.parquet"), ("datasets", "saved"), ("datasets", "hf:a/b")])
def test_a_missing_library_says_what_to_install(tmp_path, monkeypatch, module, name):
    (tmp_path / "x.parquet").touch()
    (tmp_path / "saved").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[data\]'"):
        read(name)
