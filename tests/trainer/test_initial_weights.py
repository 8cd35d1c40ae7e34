"""What a run starts from is what transformers would load, bit for bit, whatever a model calls its weights."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    MixtralConfig,
    Qwen3Config,
)

from pipeline.config import Trainer
from tests.trainer.gradients import make_updater, settings
from trainer import checkpoint, resume
from trainer.initial_weights import fill
from trainer.model import ModelError
from trainer.ranks import joined
from trainer.sharding import sharded

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 320,
}
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MODELS = {
    "Qwen3, tied": Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
    "Llama, with a head of its own": LlamaConfig(
        **SIZES, rope_scaling=SCALED | {"original_max_position_embeddings": 64}
    ),
    "Gemma, tied, embeddings scaled": Gemma3TextConfig(**SIZES, head_dim=16),
    "GPT-2": GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=320, n_positions=128),
    "Mixtral, whose experts are joined": MixtralConfig(**SIZES, num_local_experts=4),
}


@pytest.fixture
def ranks():
    with joined(Trainer()) as ranks:
        yield ranks


def random_model(config, dtype=torch.float32):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def started(ranks, folder):
    model = sharded(folder, settings(folder, 100), ranks)
    fill(model, folder, ranks)
    return model


def check(ranks, folder):
    ours, expected = started(ranks, folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for kind in ("named_parameters", "named_buffers"):
        mine, its = (dict(getattr(model, kind)()) for model in (ours, expected))
        assert mine.keys() == its.keys(), "tied weights are one"
        for name, tensor in its.items():
            found = mine[name].detach()
            found = found.full_tensor() if kind == "named_parameters" else found
            assert found.dtype == tensor.dtype and torch.equal(found, tensor), name
    ids = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(ours(input_ids=ids).logits, expected(input_ids=ids).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", MODELS)
def test_the_weights_are_those_that_transformers_loads(ranks, tmp_path, kind, dtype):
    random_model(MODELS[kind], dtype).save_pretrained(tmp_path)
    check(ranks, tmp_path)


def test_weights_in_several_files_are_read_too(ranks, tmp_path):
    random_model(MODELS["Qwen3, tied"]).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    check(ranks, tmp_path)


def test_names_without_the_head_models_prefix_are_read_by_transformers(ranks, tmp_path, caplog):
    torch.manual_seed(0)
    GPT2Model(MODELS["GPT-2"]).save_pretrained(tmp_path)
    config = GPT2Config(**MODELS["GPT-2"].to_dict() | {"architectures": ["GPT2LMHeadModel"]})
    config.save_pretrained(tmp_path)
    check(ranks, tmp_path)
    assert "names its weights otherwise than a gpt2 model: rank 0 reads all of them" in caplog.text


def test_weights_that_are_missing_or_have_no_place_are_named(ranks, tmp_path):
    random_model(MODELS["Qwen3, tied"]).save_pretrained(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")

    def expect(weights, *said):
        save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError) as raised:
            started(ranks, tmp_path)
        assert all(word in str(raised.value) for word in (str(tmp_path), *said)), raised.value

    one = "model.layers.1.mlp.up_proj.weight"
    expect({name: t for name, t in whole.items() if name != one}, "weights are missing", one)
    more = "model.layers.2.mlp.up_proj.weight"
    expect(whole | {more: torch.zeros(2)}, "no place for", more)
    expect(whole | {one: torch.zeros(3, 32)}, "another shape", one)


def test_a_resume_reads_no_weights_of_the_model_folder(ranks, tiny_model, tmp_path):
    updater = make_updater(ranks, settings(tiny_model, 100))
    with checkpoint.Writer(tmp_path / "checkpoints", ranks, kept=1) as writer:
        writer.begin(updater, {"version": 3})
        writer.settle(wait=True)
    bare = tmp_path / "bare"
    shutil.copytree(tiny_model, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    again = resume.make_updater(bare, settings(bare, 100), ranks, tmp_path / "checkpoints" / "3")
    for mine, its in zip(again.model.parameters(), updater.model.parameters(), strict=True):
        assert torch.equal(mine.full_tensor(), its.full_tensor())
