import json

import pytest

from pipeline.engine_model import difference

OURS = {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 384, "hidden_size": 64, "num_hidden_layers": 2}


def folder(path, config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("theirs", "sentence"),
    [
        ({}, ""),
        ({"rope_theta": 1e6, "head_dim": 16}, ""),
        ({"vocab_size": 151936}, "vocab_size is 151936, in the run's 384"),
        ({"num_hidden_layers": 28}, "num_hidden_layers is 28, in the run's 2"),
    ],
)
def test_a_model_of_another_shape_is_named_by_what_differs(tmp_path, theirs, sentence):
    there = folder(tmp_path / "theirs", OURS | theirs)
    info = {"model_path": str(there), "architectures": ["Qwen3ForCausalLM"]}
    assert difference(info, folder(tmp_path / "ours", OURS)) == sentence


def test_the_shape_of_a_model_of_more_than_text_is_that_of_its_text(tmp_path):
    there, ours = folder(tmp_path / "theirs", {"text_config": {"hidden_size": 128}}), folder(tmp_path / "ours", OURS)
    assert difference({"model_path": str(there)}, ours) == "hidden_size is 128, in the run's 64"


def test_an_engine_that_does_not_say_where_its_model_is_is_not_looked_for_here(tmp_path, monkeypatch):
    monkeypatch.chdir(folder(tmp_path / "here", OURS | {"hidden_size": 128}))
    for info in ({}, {"model_path": ""}, {"model_path": None}):
        assert difference(info, folder(tmp_path / f"ours-{len(info)}-{info.get('model_path')}", OURS)) == ""


def test_an_engine_whose_folder_cannot_be_read_from_here_is_known_by_its_architecture(tmp_path):
    ours, name = folder(tmp_path / "ours", OURS), "some/model-of-a-hub"
    assert difference({"model_path": name, "architectures": ["Qwen3ForCausalLM"]}, ours) == ""
    assert difference({"model_path": name}, ours) == ""
    found = difference({"model_path": name, "architectures": ["LlamaForCausalLM"]}, ours)
    assert found == "architectures is LlamaForCausalLM, in the run's Qwen3ForCausalLM"
