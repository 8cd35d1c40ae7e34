"""FLOPs of an update, against torch's own count of what is computed, and by hand."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MambaConfig,
    PreTrainedConfig,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    RwkvConfig,
)

from tests.trainer import gradients
from trainer import throughput
from trainer.throughput import costs_of, pairs, peak, peak_memory_gib, rates

LENGTHS = [7, 30, 19]
EXPERTS = Qwen3MoeConfig(
    vocab_size=64,
    hidden_size=32,
    moe_intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    num_experts=8,
    num_experts_per_tok=2,
)


def whole_square(costs, length):
    """The costs of one forward of a trajectory by a model that computes all logits and masks attention afterwards."""
    attention = sum(cost * length * length for _, cost in costs.windows)
    return length * (costs.token + costs.action_token) + attention


def counted(model, length):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(length)[None] % 20)
    return counter.get_total_flops()


def test_matrices_and_attention_cost_what_torch_counts(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="eager")
    norms = sum(p.numel() for name, p in model.named_parameters() if "norm" in name)
    costs = costs_of(model)
    for length in LENGTHS:
        assert whole_square(costs, length) - 2 * norms * length == counted(model, length)


def test_of_attention_half_is_needed_and_of_the_head_what_predicts_an_action_token(tiny_model):
    costs = costs_of(AutoModelForCausalLM.from_pretrained(tiny_model))
    assert costs.windows == [(None, 4 * 32)] * 2
    assert costs.action_token == 2 * 320 * 32
    assert costs.forward([10], 3) == pytest.approx(10 * costs.token + 3 * costs.action_token + 2 * 4 * 32 * 55)
    assert costs.forward(LENGTHS, 12) == pytest.approx(
        sum(costs.forward([length], 4) for length in LENGTHS), rel=1e-12
    ), "none looks at another"


def test_in_a_sliding_window_pairs_are_those_within():
    for length in range(1, 12):
        for window in range(1, 12):
            near = sum(1 for q in range(length) for k in range(q + 1) if q - k < window)
            assert pairs(np.array([length], float), window) == near
    assert pairs(np.array([5.0]), None) == 15


def test_a_layer_with_a_window_is_told_from_one_without():
    config = Gemma3TextConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=24,
        sliding_window=8,
    )
    costs = costs_of(Gemma3ForCausalLM(config))
    assert costs.windows == [(8, 4 * 48)] * 5 + [(None, 4 * 48)]


def test_of_experts_those_count_that_a_token_is_sent_to():
    model = Qwen3MoeForCausalLM(EXPERTS)
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    others = sum(p.numel() for name, p in model.named_parameters() if ".experts." not in name) - 2 * 64 * 32
    assert experts == 8 * 3 * 32 * 16
    assert costs_of(model).token == 2 * (experts / 4 + others)


def test_experts_whose_number_is_not_known_count_in_full():
    name = "model.layers.0.mlp.experts.down_proj"
    assert throughput._used(name, EXPERTS) == 1 / 4
    assert throughput._used(name, PreTrainedConfig()) == 1


WITHOUT_ATTENTION = {
    "rwkv": RwkvConfig(hidden_size=32, num_hidden_layers=2, vocab_size=320, context_length=128),
    "mamba": MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=320, state_size=8),
}


@pytest.mark.parametrize("kind", WITHOUT_ATTENTION)
def test_a_model_without_attention_is_trained_and_its_cost_grows_with_the_tokens_alone(kind, tmp_path):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(WITHOUT_ATTENTION[kind])
    model.save_pretrained(tmp_path)
    costs = costs_of(model)
    assert costs.windows == [] and costs.forward([20], 0) == 2 * costs.forward([10], 0) > 0
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    metrics, _, after = gradients.compute(tmp_path, 4096)
    assert metrics["skipped"] == 0 and np.isfinite(metrics["loss"])
    assert any((after[name] != before[name]).any() for name in before)


@pytest.mark.parametrize(
    ("passes", "options"),
    [
        (3, {}),
        (3, {"minibatches": 2, "loss": {"proximal": "rollout"}}),
        (4, {"minibatches": 2}),
        (4, {"loss": {"kl": 0.1}}),
        (5, {"minibatches": 2, "loss": {"kl": 0.1}}),
        (4, {"loss": {"rejection": "token", "rejection_high": 9.0}}),
    ],
)
def test_an_updates_flops_count_each_pass_that_it_needs_whatever_the_packing(tiny_model, passes, options):
    costs = costs_of(AutoModelForCausalLM.from_pretrained(tiny_model))
    trajectories = [gradients.trajectory(seed, longest=100) for seed in range(5)]
    lengths, actions = [len(t.tokens) for t in trajectories], sum(t.action_tokens for t in trajectories)
    for budget in (1, 4096):
        metrics, _, _ = gradients.compute(tiny_model, budget, trajectories=trajectories, **options)
        assert metrics["flops"] == pytest.approx(passes * costs.forward(lengths, actions), rel=1e-12)


def test_peaks_are_known_by_the_names_that_devices_have():
    assert peak("NVIDIA H100 80GB HBM3", "bfloat16") == 989e12
    assert peak("NVIDIA H100 PCIe", "bfloat16") == 756e12
    assert peak("NVIDIA H100 NVL", "bfloat16") == 835e12
    assert peak("NVIDIA A100-SXM4-80GB", "float32") == 19.5e12
    assert peak("NVIDIA GeForce RTX 4090", "bfloat16") == 165.2e12
    assert peak("NVIDIA GeForce GTX 1080", "bfloat16") is None
    assert all(half > 2 * full > 0 for half, full in throughput.PEAKS.values() if half != 165.2e12)


def test_utilization_is_told_where_the_peak_is_known():
    assert rates(1000, 2e12, 0.5, None) == {"tokens_per_second": 2000}
    assert rates(1000, 2e12, 0.5, 16e12) == {"tokens_per_second": 2000, "mfu": 0.25}


def test_peak_memory_is_of_this_process_and_stays_when_the_memory_is_given_back():
    before = peak_memory_gib(torch.device("cpu"))
    held = np.ones(300 << 17)  # 300 MiB
    after = peak_memory_gib(torch.device("cpu"))
    del held
    assert before + 0.1 < after < 64, "pytest itself holds less than 200 MiB more than it does now"
    assert peak_memory_gib(torch.device("cpu")) == pytest.approx(after, rel=0.01)
