"""Log-probs of packed rows against a plain Hugging Face forward of one trajectory at a time."""

import copy
import json

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    ModernBertDecoderConfig,
    OPTConfig,
)

from tests.trainer.ledger import trajectory
from trainer import head
from trainer import model as policy
from trainer.attention import suit
from trainer.model import ModelError, action_logprobs
from trainer.packing import action_places, pack, plan

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 320,
}
SHAPES = {
    "learned positions": GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=320, n_positions=128),
    "sliding window": MistralConfig(**SIZES, sliding_window=16),
    "logits with a soft cap": Gemma3TextConfig(**SIZES, head_dim=16, final_logit_softcapping=2.0),
    "logits with a scale": CohereConfig(**SIZES, logit_scale=0.3),
}


def random_model(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()
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


def packed(model, trajectories, budget, temperature=1.0, layout="flat"):
    found = {}
    for rows in plan([len(t.tokens) for t in trajectories], budget, layout=layout)[0]:
        batch = pack(rows, trajectories)
        with torch.no_grad():
            parts = action_logprobs(model, batch, temperature)[0].split(batch.counts)
        found |= dict(zip(batch.members, parts, strict=True))
    return [found[i].numpy() for i in range(len(trajectories))]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("budget", [1, 150, 4096])
@pytest.mark.parametrize("own_attention", [False, True])
def test_packed_logprobs_equal_a_plain_forward(tiny_model, budget, temperature, own_attention):
    model = policy.load(tiny_model)
    trajectories = [trajectory(seed, longest=100) for seed in range(12)]
    expected, layout = plain(model, trajectories, temperature), "rows" if own_attention else suit(model, model.device)
    for ours, its in zip(packed(model, trajectories, budget, temperature, layout), expected, strict=True):
        np.testing.assert_allclose(ours, its, atol=1e-5)


class Largest(TorchDispatchMode):
    """The most rows that any [rows, columns] of all that is computed has."""

    def __init__(self, columns):
        super().__init__()
        self.columns, self.rows = columns, 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        found = function(*arguments, **(options or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and tensor.shape[-1:] == (self.columns,):
                self.rows = max(self.rows, tensor.numel() // self.columns)
        return found


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_the_logits_of_all_tokens_are_never_there_at_once(tiny_model, monkeypatch, entropy_gradient):
    monkeypatch.setitem(head.CELLS, "cpu", 40 * 320)
    model = policy.load(tiny_model)
    trajectories = [trajectory(seed, longest=100) for seed in range(12)]
    batch = pack([[i] for i in range(12)], trajectories)
    with Largest(columns=320) as largest:
        logprobs, entropy = action_logprobs(model, batch, 1.0, entropy_gradient)
        (logprobs.sum() + entropy.sum()).backward()
    assert largest.rows == 40 < len(logprobs) / 4


@pytest.mark.parametrize("shape", [*SHAPES, "layers within layers"])
def test_a_few_logits_at_a_time_give_the_same_as_all(monkeypatch, shape):
    model = random_model(SHAPES.get(shape) or OPTConfig(**SIZES, ffn_dim=64, word_embed_proj_dim=32))
    trajectories = [trajectory(seed, longest=100) for seed in range(4)]
    batch = pack([[0, 1], [2, 3]], trajectories)

    def found(rows):
        monkeypatch.setitem(head.CELLS, "cpu", rows * 320)
        model.zero_grad()
        logprobs, entropy = action_logprobs(model, batch, 0.7, entropy_gradient=True)
        (logprobs[::2].sum() - entropy[1::2].sum()).backward()
        return logprobs.detach(), entropy.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])

    expected = found(10**6)
    for rows in (1, 7, 64):
        logprobs, entropy, gradient = found(rows)
        torch.testing.assert_close(logprobs, expected[0], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(entropy, expected[1], atol=1e-6, rtol=1e-6)
        assert (gradient - expected[2]).norm() / expected[2].norm() < 1e-5


def test_a_model_that_is_one_with_its_head_is_refused():
    class Whole(GPT2LMHeadModel):
        def get_decoder(self):
            return self

    with pytest.raises(ModelError, match="Whole has no layers apart from its head"):
        action_logprobs(Whole(SHAPES["learned positions"]), pack([[0]], [trajectory(0)]))


def test_a_model_whose_head_goes_by_the_name_of_its_layers_is_refused():
    model = random_model(ModernBertDecoderConfig(**SIZES, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    with pytest.raises(ModelError, match="ModernBertDecoderForCausalLM has no layers apart from its head"):
        action_logprobs(model, pack([[0]], [trajectory(0)]))


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


def test_a_recomputed_layer_keeps_nothing_but_its_input_and_gives_the_same_gradient(tiny_model):
    batch = pack([list(range(8))], [trajectory(seed, longest=100) for seed in range(8)])

    def found(recomputed):
        model, kept = policy.load(tiny_model), 0
        suit(model, model.device)
        if recomputed:
            policy.recompute_layers(model)

        def keep(tensor):
            nonlocal kept
            kept += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logprobs, _ = action_logprobs(model, batch)
        logprobs.sum().backward()
        return kept, torch.cat([p.grad.flatten() for p in model.parameters()])

    (all_kept, expected), (kept, gradient) = found(False), found(True)
    assert kept < all_kept / 2
    assert (gradient - expected).norm() / expected.norm() < 1e-6
