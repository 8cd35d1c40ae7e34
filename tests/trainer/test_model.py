"""Log-probs of packed rows against a plain Hugging Face forward of one trajectory at a time."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, MistralConfig, RwkvConfig

from tests.trainer.ledger import trajectory
from trainer import model as policy
from trainer.model import ModelError, action_logprobs, shares_rows
from trainer.packing import action_places, pack, plan

SHAPES = {
    "learned positions": GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=320, n_positions=128),
    "sliding window": MistralConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=320,
        sliding_window=16,
    ),
}


def random_model(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():  # far from flat, so that a wrong mask shows
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.15)
    return model


def plain(model, trajectories, temperature=1.0):
    """[L] log-probs of each trajectory's action tokens, one forward each, from full logits."""
    found = []
    for t in trajectories:
        tokens = torch.from_numpy(t.tokens.astype(np.int64))[None]
        with torch.no_grad():
            logits = model(input_ids=tokens).logits[0].double() / temperature
        logprobs = torch.log_softmax(logits, -1)[:-1].gather(1, tokens[0, 1:, None])[:, 0]
        found.append(logprobs[action_places(t) - 1].numpy())
    return found


def packed(model, trajectories, budget, temperature=1.0):
    found = {}
    share_rows = shares_rows(model, model.device)
    for rows in plan([len(t.tokens) for t in trajectories], budget, share_rows=share_rows)[0]:
        batch = pack(rows, trajectories)
        with torch.no_grad():
            parts = action_logprobs(model, batch, temperature)[0].split(batch.counts)
        found |= dict(zip(batch.members, parts, strict=True))
    return [found[i].numpy() for i in range(len(trajectories))]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("budget", [1, 150, 4096])
def test_packed_logprobs_equal_a_plain_forward(tiny_model, budget, temperature):
    model = policy.load(tiny_model)
    trajectories = [trajectory(seed, longest=100) for seed in range(12)]
    for ours, expected in zip(
        packed(model, trajectories, budget, temperature), plain(model, trajectories, temperature), strict=True
    ):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_other_models_share_rows_too(shape):
    model = random_model(SHAPES[shape])
    trajectories = [trajectory(seed, longest=100) for seed in range(8)]
    assert shares_rows(model, model.device)
    for ours, expected in zip(packed(model, trajectories, 4096), plain(model, trajectories), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_a_recurrent_model_is_recognised_and_gets_a_row_for_each_trajectory():
    config = RwkvConfig(hidden_size=32, num_hidden_layers=2, vocab_size=320, context_length=128)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    assert not shares_rows(model, model.device)


def test_entropy_is_that_of_the_tempered_distribution(tiny_model):
    model = policy.load(tiny_model)
    trajectories = [trajectory(3)]
    _, entropy = action_logprobs(model, pack([[0]], trajectories), temperature=0.5)
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(trajectories[0].tokens.astype(np.int64))[None]).logits[0] / 0.5
    expected = torch.distributions.Categorical(logits=logits[action_places(trajectories[0]) - 1]).entropy()
    torch.testing.assert_close(entropy, expected, atol=1e-5, rtol=1e-5)


def test_tokens_of_prompt_and_tool_add_no_gradient(tiny_model):
    """The gradient is that of the action tokens' log-probs, whatever else is in the trajectory."""
    model = policy.load(tiny_model)
    t = trajectory(5)
    batch = pack([[0]], [t])
    action_logprobs(model, batch)[0].sum().backward()
    ours = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    tokens = torch.from_numpy(t.tokens.astype(np.int64))[None]
    everything = torch.log_softmax(model(input_ids=tokens).logits[0].float(), -1)[:-1].gather(1, tokens[0, 1:, None])
    (everything[:, 0] * torch.from_numpy(t.loss_mask[1:].astype(np.float32))).sum().backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert (ours - expected).norm() / expected.norm() < 1e-5


def test_a_model_folder_that_cannot_be_used_says_what_to_do(tiny_model, tmp_path):
    def expect(message, path):
        with pytest.raises(ModelError, match=message) as raised:
            policy.load(path)
        assert "model.path" in str(raised.value) and str(path) in str(raised.value)
        assert "\n" not in str(raised.value)

    expect("no such folder", tmp_path / "nowhere")
    folder = tmp_path / "model"
    folder.mkdir()
    expect("config.json is missing", folder)
    (folder / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    expect("no \\*.safetensors", folder)
    whole = (tiny_model / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    expect("cannot be loaded", folder)
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "config.json").write_text(json.dumps({"model_type": "nonesuch"}))
    expect("cannot be loaded", folder)
