"""Files of tensors that are written piece by piece, against the library that reads them."""

import io

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipeline.tensor_file import Entry, entries, fingerprints, header

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones((0, 4), np.float16), "é": np.array(7)}
ENTRIES = [Entry("a", "F32", (2, 3)), Entry("b", "F16", (0, 4)), Entry("é", "I64", ())]


def written(path):
    path.write_bytes(header(ENTRIES) + b"".join(tensor.tobytes() for tensor in TENSORS.values()))
    return path


def test_what_is_written_piece_by_piece_is_what_the_library_reads(tmp_path):
    found = load_file(written(tmp_path / "ours"))
    assert found.keys() == TENSORS.keys()
    assert all(
        np.array_equal(found[name], TENSORS[name]) and found[name].dtype == TENSORS[name].dtype for name in found
    )


def test_a_tensor_has_the_same_fingerprint_whoever_wrote_it_and_another_one_if_anything_of_it_differs(tmp_path):
    ours = fingerprints(written(tmp_path / "ours"))
    save_file(TENSORS, tmp_path / "theirs")
    assert ours == fingerprints(tmp_path / "theirs")
    for other in (TENSORS["a"] + 1, TENSORS["a"].reshape(3, 2), TENSORS["a"].view(np.int32)):
        save_file({"a": other}, tmp_path / "other")
        assert fingerprints(tmp_path / "other")["a"] != ours["a"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:-1], "it ends within é"),
        (lambda data: data + b"\0", "something follows its last tensor"),
        (lambda data: data.replace(b'"data_offsets":[0,24]', b'"data_offsets":[0,20]'), "a lies at"),
        (lambda data: b"\xff" * len(data), "a header of"),
        (lambda data: (2).to_bytes(8, "little") + b"[]", "a header that is no object"),
        (lambda data: b"", "Expecting value"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path, change, why):
    path = written(tmp_path / "torn")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=why):
        fingerprints(path)


def test_the_header_ends_where_the_tensors_begin():
    file = io.BytesIO(header(ENTRIES))
    assert entries(file) == ENTRIES and file.tell() == len(file.getvalue()) and file.tell() % 8 == 0
