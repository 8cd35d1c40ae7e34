"""Which models take trajectories that share one row, and that none of these sees another."""

import copy
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    FalconH1Config,
    Gemma2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    JambaConfig,
    Lfm2Config,
    MixtralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    RwkvConfig,
)

from pipeline.config import Trainer
from tests.trainer.gradients import make_updater, settings
from tests.trainer.ledger import trajectory
from tests.trainer.test_model import SHAPES, SIZES, Largest, packed, plain, random_model
from trainer import resume
from trainer.attention import NAME, AttentionUnsuitable, attend, borders, described, suit
from trainer.model import action_logprobs
from trainer.packing import pack
from trainer.ranks import joined

GROUPED = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
NARROW = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 2,
}
FLAT = SHAPES | {
    "grouped heads": Qwen3Config(**GROUPED),
    "values narrower than keys": DeepseekV3Config(**SIZES | {"num_key_value_heads": 2}, **NARROW),
}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
OTHERS = {
    "attention with a soft cap": (Gemma2Config(**SIZES, head_dim=16, sliding_window=16), {"rows"}),
    "attention with sinks": (GptOssConfig(**SIZES, head_dim=16, sliding_window=16, **EXPERTS), {"rows", "alone"}),
    "recurrent": (RwkvConfig(hidden_size=32, num_hidden_layers=2, vocab_size=320, context_length=128), {"alone"}),
}


def check(model, layouts):
    trajectories = [trajectory(seed, longest=100) for seed in range(8)]
    expected, layout = plain(model, trajectories), suit(model, model.device)
    assert layout in layouts
    assert (model.config._attn_implementation == NAME) == (layout == "flat")
    said = described(model, layout, model.device, "float32")
    assert said.startswith("sdpa, trajectory by trajectory") if layout == "flat" else "the model's own (" in said
    assert NAME not in json.dumps(model.config.to_dict()), "nothing of it is published"
    for ours, again, its in zip(
        packed(model, trajectories, 4096, layout=layout), plain(model, trajectories), expected, strict=True
    ):
        np.testing.assert_allclose(ours, its, atol=1e-5)
        np.testing.assert_allclose(again, its, atol=1e-5, err_msg="without borders a row is one trajectory")


@pytest.mark.parametrize("shape", FLAT)
def test_a_model_that_could_use_flash_attention_takes_trajectories_in_one_row(shape):
    check(random_model(FLAT[shape]), {"flat"})


@pytest.mark.parametrize("shape", OTHERS)
def test_a_model_that_needs_more_of_its_attention_keeps_its_own(shape):
    config, layouts = OTHERS[shape]
    check(random_model(config), layouts)


STATE = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
MOE = {"num_experts": 4, "num_experts_per_tok": 2}
LEAKY = {
    "a convolution": Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]),
    "states beside attention": FalconH1Config(**SIZES, **STATE),
    "states between attention": JambaConfig(
        **SIZES, num_experts=2, use_mamba_kernels=False, attn_layer_period=2, attn_layer_offset=1
    ),
    "a gated recurrence": RecurrentGemmaConfig(
        **SIZES | {"num_hidden_layers": 3}, lru_width=32, head_dim=16, attention_window_size=64
    ),
    "linear attention": Qwen3NextConfig(
        **SIZES | {"num_hidden_layers": 4}, head_dim=16, moe_intermediate_size=32, **LINEAR, **MOE
    ),
    "a bias by distance": BloomConfig(hidden_size=64, n_layer=2, n_head=4, vocab_size=320),
}
APART = {
    "grouped heads": FLAT["grouped heads"],
    "experts": Qwen3MoeConfig(**GROUPED, moe_intermediate_size=32, **MOE),
    "other experts": MixtralConfig(**SIZES, num_local_experts=4),
}


def as_drawn(config, dtype):
    """With the weights that Transformers begins with: small, so that what little leaks is little."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=dtype).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", LEAKY)
def test_a_layer_that_hands_a_little_of_one_trajectory_to_the_next_keeps_them_in_rows_of_their_own(shape, dtype):
    model = as_drawn(LEAKY[shape], dtype)
    assert suit(model, model.device) == "alone"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", APART)
def test_experts_that_get_other_numbers_of_tokens_are_no_leak(shape, dtype):
    model = as_drawn(APART[shape], dtype)
    assert suit(model, model.device) == "flat"


def test_policy_and_reference_have_the_layout_that_is_measured_of_the_policy(tiny_model, monkeypatch):
    measured = []
    monkeypatch.setattr(resume, "suit", lambda model, device: measured.append(model) or suit(model, device))
    with joined(Trainer()) as ranks:
        updater = make_updater(ranks, settings(tiny_model, 4096, loss={"kl": 0.1}))
    assert measured == [updater.model] and updater.layout == "flat"
    assert {model.config._attn_implementation for model in (updater.model, updater.reference)} == {NAME}


def test_wrong_positions_are_found_though_nothing_leaks():
    """A model that counts positions from the start of the row: where a trajectory lies would change it."""

    class Counting(GPT2LMHeadModel):
        def forward(self, input_ids, position_ids, **others):
            counted = torch.arange(input_ids.shape[1])[None].expand_as(input_ids)
            mask = (position_ids == 0).cumsum(-1)
            mask = (mask[:, None, :, None] == mask[:, None, None]).tril()
            return super().forward(input_ids, position_ids=counted, attention_mask=mask, use_cache=False)

    torch.manual_seed(0)
    model = Counting(SHAPES["learned positions"]).eval()
    model.transformer.wpe.weight.data.normal_()
    model._supports_flash_attn = False
    assert suit(model, model.device) == "alone"


def test_nothing_of_the_size_of_all_pairs_of_tokens_is_made():
    model = random_model(FLAT["grouped heads"])
    trajectories = [trajectory(seed, longest=100) for seed in range(12)]
    batch = pack([list(range(12))], trajectories)
    suit(model, model.device)
    tokens = sum(batch.lengths)
    with Largest(columns=tokens) as pairs:
        action_logprobs(model, batch)[0].sum().backward()
    assert pairs.rows < tokens / 4


def rows(lengths, heads=4, groups=2, width=16):
    torch.manual_seed(0)
    return [torch.randn(1, count, sum(lengths), width, requires_grad=True) for count in (heads, groups, groups)]


@pytest.mark.parametrize("window", [None, 1, 5, 40])
def test_attention_and_its_gradient_are_those_of_a_masked_row(window):
    lengths = [17, 1, 30, 6]
    inputs = rows(lengths)
    whose, place = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths)), torch.arange(sum(lengths))
    ago = place[:, None] - place
    mask = (whose[:, None] == whose) & (ago >= 0) & (ago < (window or 100))
    query, key, value = inputs
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3, enable_gqa=True)
    found, _ = attend(None, *inputs, None, scaling=0.3, sliding_window=window, **borders(lengths, query.device))
    torch.testing.assert_close(found, expected.transpose(1, 2))
    weights = torch.randn_like(found)
    for ours, its in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected.transpose(1, 2) * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, its)


class Called(TorchDispatchMode):
    """The arguments with which torch's kernel was called."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if "varlen" in str(function):
            self.arguments = arguments
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("window", [None, 8])
def test_in_16_bits_on_a_gpu_it_is_torchs_varlen_kernel(window):
    """Of tensors without values: the kernel is called as torch has it, with heads and widths that it takes."""
    query, key, value = (
        torch.empty(1, count, 48, width, dtype=torch.bfloat16, device="meta")
        for count, width in ((4, 16), (2, 16), (2, 12))
    )
    ends = {"cu_seq_lens_q": torch.empty(4, dtype=torch.int32, device="meta"), "max_length_q": 30}
    with Called() as kernel:
        found, _ = attend(None, query, key, value, None, scaling=0.3, sliding_window=window, **ends)
    assert found.shape == (1, 48, 4, 12) and found.dtype == torch.bfloat16
    assert [tensor.shape for tensor in kernel.arguments[:3]] == [(48, 4, 16)] * 3
    assert kernel.arguments[5:7] == (30, 30)
    assert kernel.arguments[7:10] == (window is None, 0.3, [-1 if window is None else 7, 0])


@pytest.mark.parametrize("more", [{"softcap": 30.0}, {"s_aux": torch.zeros(4)}, {"position_bias": torch.zeros(1)}])
def test_what_it_does_not_know_is_refused(more):
    with pytest.raises(AttentionUnsuitable, match=f"for {next(iter(more))}"):
        attend(torch.nn.Identity(), *rows([3, 4]), None, **borders([3, 4], torch.device("cpu")), **more)


@pytest.mark.parametrize("wrong", [{"attention_mask": torch.ones(1, 7)}, {"is_causal": False}])
def test_a_mask_is_refused(wrong):
    given = {"attention_mask": None} | borders([3, 4], torch.device("cpu")) | wrong
    with pytest.raises(AttentionUnsuitable, match="Identity"):
        attend(torch.nn.Identity(), *rows([3, 4]), **given)
