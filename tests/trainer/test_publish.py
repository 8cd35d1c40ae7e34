"""The folder of a publication: what Transformers saves and loads, from any number of ranks, in little memory."""

import json
import os
import subprocess
import sys
from copy import deepcopy
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from pipeline import ports, tensor_file, weights
from trainer import model as policy
from trainer import weight_files
from trainer.delta import Delta
from trainer.publish import MIB, PublishError, write_weights
from trainer.tensor_writer import Writer
from trainer.weight_files import ConversionError

PROBE = list(range(32))
ROWS = 40_000  # of an embedding of 2.5 MiB of bfloat16, which several pieces make


def read(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


@pytest.fixture(scope="module")
def wide(tiny_model):
    """The tiny model with an embedding that is larger than a bucket."""
    torch.manual_seed(1)
    model = policy.load(tiny_model)
    model.resize_token_embeddings(ROWS)
    return model.eval()


def expected(model, dtype, folder) -> dict[str, torch.Tensor]:
    """What transformers saves."""
    deepcopy(model).to(dtype).save_pretrained(folder)
    return read(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bucket_mb", [1, 512])
def test_the_folder_holds_what_transformers_would_save_however_small_the_bucket(
    wide, tiny_model, tmp_path, dtype, bucket_mb
):
    written = write_weights(wide, tmp_path / "1", 1, tiny_model, dtype, PROBE, bucket_mb=bucket_mb)
    ours, theirs = read(tmp_path / "1"), expected(wide, policy.DTYPES[dtype], tmp_path / "plain")
    assert ours.keys() == theirs.keys() and "lm_head.weight" not in ours
    assert all(torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype for name in ours)
    assert written.bytes == sum(tensor.nbytes for tensor in ours.values())
    names = sorted(path.name for path in (tmp_path / "1").glob("model*"))
    if bucket_mb == 512:
        assert names == ["model.safetensors"]
    else:
        assert names[0] == "model-00001-of-00002.safetensors" and names[-1] == weight_files.INDEX
        listed = json.loads((tmp_path / "1" / weight_files.INDEX).read_text())["weight_map"]
        assert listed.keys() == ours.keys() and {*listed.values(), weight_files.INDEX} == set(names)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "1", dtype=torch.float32)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_the_manifest_names_every_file_and_tensor_as_they_lie_on_the_disk(wide, tiny_model, tmp_path):
    manifest = write_weights(wide, tmp_path / "1", 1, tiny_model, "bfloat16", PROBE, bucket_mb=1).manifest
    assert weights.verify_files(tmp_path / "1") == manifest
    on_disk = {path.name: path for path in (tmp_path / "1").iterdir() if path.name != weights.MANIFEST}
    assert manifest.files == {name: sha256(path.read_bytes()).hexdigest() for name, path in on_disk.items()}
    marks = [tensor_file.fingerprints(path) for path in on_disk.values() if path.suffix == ".safetensors"]
    assert manifest.tensors == {name: mark for found in marks for name, mark in found.items()}


def test_experts_that_are_trained_as_one_tensor_are_published_one_by_one(tiny_model, tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "moe_intermediate_size": 8, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_experts": 4}
    config = Qwen3MoeConfig(vocab_size=64, num_experts_per_tok=2, **sizes, **heads)
    model = AutoModelForCausalLM.from_config(config).eval()
    write_weights(model, tmp_path / "1", 1, tiny_model, "float32", PROBE)
    ours, theirs = read(tmp_path / "1"), expected(model, torch.float32, tmp_path / "plain")
    assert "model.layers.1.mlp.experts.3.gate_proj.weight" in ours and ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_model_that_is_saved_as_a_mixture_of_its_tensors_is_refused(wide, monkeypatch):
    def mixed(model, tensors):
        return {"sum": next(iter(tensors.values()))} if len(tensors) == 1 else {"other": torch.empty(1, device="meta")}

    monkeypatch.setattr(weight_files, "revert_weight_conversion", mixed)
    with pytest.raises(ConversionError, match="Qwen3ForCausalLM: other is saved as a mixture of several"):
        weight_files.sources(wide, wide.state_dict(), torch.float32)


def test_a_disk_that_refuses_is_told_and_no_folder_appears(wide, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(
        Writer, "begin", lambda self, path, entries: BEGIN(self, path.parent / "gone" / path.name, entries)
    )
    with pytest.raises(PublishError, match=r"weights .*1 cannot be written \(.*No such file.*\): make room"):
        write_weights(wide, tmp_path / "1", 1, tiny_model, "float32", PROBE, bucket_mb=1)
    assert not (tmp_path / "1").exists()


BEGIN = Writer.begin


def test_what_a_killed_writer_has_left_is_in_nobodys_way(wide, tiny_model, tmp_path):
    (tmp_path / ".1.new").mkdir()
    (tmp_path / ".1.new" / "model-00009-of-00009.safetensors").touch()
    write_weights(wide, tmp_path / "1", 1, tiny_model, "float32", PROBE)
    assert [path.name for path in tmp_path.iterdir()] == ["1"] and not list((tmp_path / "1").glob("*00009*"))


def test_a_delta_writes_the_layers_that_were_trained_and_links_the_others(tiny_model, tmp_path):
    model, delta = policy.load(tiny_model), Delta()
    whole = write_weights(model, tmp_path / "1", 1, tiny_model, "bfloat16", PROBE, delta=delta)
    with torch.no_grad():
        for parameter in model.model.layers[1].parameters():
            parameter.add_(0.1)
    part = write_weights(model, tmp_path / "2", 2, tiny_model, "bfloat16", PROBE, delta=delta)
    again = write_weights(model, tmp_path / "3", 3, tiny_model, "bfloat16", PROBE, delta=delta)
    layer = sum(parameter.numel() * 2 for parameter in model.model.layers[1].parameters())
    assert (part.bytes, again.bytes) == (layer, 0) and whole.bytes > 2 * layer
    for version, written in {"1": whole, "2": part, "3": again}.items():
        assert weights.verify_files(tmp_path / version) == written.manifest
    assert len(weights.retain(tmp_path, {3})) == 2, "a folder is whole without those it shares files with"
    weights.verify_files(tmp_path / "3")
    ours, theirs = read(tmp_path / "3"), expected(model, torch.bfloat16, tmp_path / "plain")
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def by_two(tiny_model, tmp_path_factory):
    """What two ranks wrote of a model that each holds half of, and what they said."""
    folder = tmp_path_factory.mktemp("by-two")
    program = Path(__file__).with_name("publishing_rank.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    environment |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports.free()[0])}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), str(tiny_model), str(folder)],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert [process.returncode for process in ranks] == [0, 0]
    return folder, [json.loads(text.splitlines()[-1]) for text in said]


def test_two_ranks_write_files_of_their_own_and_the_same_weights_as_one(by_two):
    folder, said = by_two
    manifest = weights.verify_files(folder / "2")
    assert manifest.tensors == weights.verify_files(folder / "1").tensors
    assert all(rank["files"] for rank in said) and not set(said[0]["files"]) & set(said[1]["files"])


def test_no_rank_holds_more_than_a_bucket_beyond_its_shard(by_two):
    """The resident memory's peak; the model has 128 MiB, and a rank's shard half of them."""
    for rank in by_two[1]:
        assert 0 < rank["beyond"] < (16 + 8) * MIB, rank  # a bucket, and what threads and gloo take
