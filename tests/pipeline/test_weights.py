import json
from hashlib import sha256

import pytest

from pipeline.tensor_file import Entry, fingerprints, header
from pipeline.weights import (
    BadWeights,
    Label,
    TensorFile,
    published,
    read_manifest,
    retain,
    verify_files,
    write_manifest,
)

TOKENS, LOGPROBS = list(range(32)), [-0.5] * 31


@pytest.fixture
def folder(tmp_path):
    """Published weights, in small."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 100)
    return tmp_path


def test_what_was_published_is_read_and_verified(folder):
    written = write_manifest(folder, 12, TOKENS, LOGPROBS, "float32")
    assert verify_files(folder) == read_manifest(folder) == written
    assert set(written.files) == {"config.json", "model.safetensors"}
    on_disk = json.loads((folder / "manifest.json").read_text())
    assert on_disk.keys() == {"version", "digest", "files", "probe", "dtype"} and on_disk["digest"] == written.digest


def test_a_manifest_written_again_is_the_same(folder):
    assert write_manifest(folder, 1, TOKENS, LOGPROBS, "float32") == write_manifest(
        folder, 1, TOKENS, LOGPROBS, "float32"
    )


def test_each_changed_or_missing_file_is_named(folder):
    write_manifest(folder, 12, TOKENS, LOGPROBS, "float32")
    (folder / "config.json").write_text("[]")
    with pytest.raises(BadWeights, match=r"config.json: its contents are not those that were published"):
        verify_files(folder)
    (folder / "config.json").unlink()
    with pytest.raises(BadWeights, match=r"config.json: missing"):
        verify_files(folder)


@pytest.fixture
def fingerprinted(folder):
    """The same with a file of tensors whose fingerprints are known."""
    path, entry = folder / "model.safetensors", Entry("weight", "U8", (100,))
    path.write_bytes(header([entry]) + b"\x00" * 100)
    found = TensorFile(sha256(path.read_bytes()).hexdigest(), fingerprints(path))
    write_manifest(folder, 12, TOKENS, LOGPROBS, "float32", {path.name: found})
    return folder


def test_a_file_that_was_hashed_while_it_was_written_has_the_manifest_of_any_other(fingerprinted):
    manifest = verify_files(fingerprinted)
    assert manifest == read_manifest(fingerprinted) and manifest.tensors.keys() == {"weight"}
    again = write_manifest(fingerprinted, 12, TOKENS, LOGPROBS, "float32")
    assert again.files == manifest.files and again.tensors == {} and again.digest != manifest.digest


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:-1] + b"\x01", "model.safetensors: weight is not what was published"),
        (lambda data: data.replace(b"weight", b"wright"), "model.safetensors: wright is not what was published"),
        (lambda data: data[:-1], r"model.safetensors: not a whole file of tensors \(it ends within weight\)"),
        (lambda data: header([]), "weight is in none of its files"),
    ],
)
def test_of_changed_tensors_the_file_and_the_name_are_told(fingerprinted, change, why):
    path = fingerprinted / "model.safetensors"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BadWeights, match=why):
        verify_files(fingerprinted)


@pytest.mark.parametrize("change", [{"version": 13}, {"files": {}}, {"probe": {"tokens": [1], "logprobs": []}}])
def test_a_changed_manifest_is_refused(folder, change):
    write_manifest(folder, 12, TOKENS, LOGPROBS, "float32")
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BadWeights, match="it was changed"):
        read_manifest(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", '{"probe": 1}'])
def test_a_broken_manifest_is_refused(folder, text):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(BadWeights, match=r"manifest.json: not a manifest"):
        read_manifest(folder)


def test_weights_that_were_never_finished_are_refused(folder):
    with pytest.raises(BadWeights, match=r"manifest.json: expected the manifest .* No such file"):
        read_manifest(folder)


def test_a_probe_needs_a_log_prob_for_each_token_but_the_first(folder):
    with pytest.raises(BadWeights, match="expected one log-prob for each of the 32 tokens but the first, found 32"):
        write_manifest(folder, 0, TOKENS, [*LOGPROBS, 0.0], "float32")


def test_a_label_is_what_it_was_made_of(folder):
    label = write_manifest(folder, 12, TOKENS, LOGPROBS, "float32").label("demo")
    assert Label.parse(str(label)) == label and str(label).startswith("demo:12:")


@pytest.mark.parametrize(
    "text", [None, "", "default", "demo:base", "demo:12", "demo:x:0123456789abcdef", "demo:1:0123"]
)
def test_any_other_label_is_of_no_version(text):
    assert Label.parse(text) is None


def test_only_complete_weights_are_published_in_the_order_of_versions(tmp_path):
    for name in ("10-a", "9-b", "0", ".11-a.new", "12-a", "notes"):
        (tmp_path / name).mkdir()
        if name != "12-a":
            (tmp_path / name / "manifest.json").touch()
    assert [path.name for path in published(tmp_path)] == ["0", "9-b", "10-a"]
    assert published(tmp_path / "none") == []


def test_weights_go_when_nobody_can_ask_for_them(tmp_path):
    names = ("0", "3-a", "4-a", "4-b", "5-a", "6-a", "notes", "7-a.partial")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    assert [path.name for path in retain(tmp_path, {0, 4, 5})] == ["3-a"]
    assert {path.name for path in tmp_path.iterdir()} == set(names) - {"3-a"}
    assert retain(tmp_path / "none", {0}) == []
