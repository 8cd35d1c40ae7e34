"""Files of JSON lines survive being torn."""

import json

import pytest

from pipeline import jsonl
from pipeline.errors import HeadraceError


def test_a_missing_file_has_no_lines(tmp_path):
    assert jsonl.read(tmp_path / "no.jsonl") == []


def test_only_whole_lines_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"version": 1}\n{"version": 2}\n{"version": 3}')
    assert jsonl.read(path) == [{"version": 1}, {"version": 2}]


@pytest.mark.parametrize("torn", ["", "{", '{"version": 1', "x" * 10_000])
@pytest.mark.parametrize("whole", ["", '{"version": 0}\n', json.dumps({"text": "y" * 9_000}) + "\n"])
def test_append_cuts_a_torn_end_and_nothing_else(tmp_path, whole, torn):
    path = tmp_path / "a.jsonl"
    path.write_text(whole + torn)
    jsonl.append(path, {"version": "ü"})
    assert path.read_text().startswith(whole)
    assert jsonl.read(path)[-1] == {"version": "ü"}
    assert len(jsonl.read(path)) == whole.count("\n") + 1


def test_the_last_record_is_found_without_reading_the_others(tmp_path):
    path = tmp_path / "a.jsonl"
    with jsonl.appending(path) as file:
        assert jsonl.last(file) is None
        for number in range(3):
            file.write(jsonl.as_line({"id": number, "text": "z" * 5_000}))
            assert jsonl.last(file)["id"] == number
    assert [record["id"] for record in jsonl.read(path)] == [0, 1, 2]


@pytest.mark.parametrize("line", [b"3", b"{", b"\xff\xfe", b""])
def test_a_whole_line_that_is_no_object_is_named(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n" + line + b"\n")
    with pytest.raises(HeadraceError, match="line 2: expected a JSON object"):
        jsonl.read(path)
