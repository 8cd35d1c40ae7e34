"""The arithmetic of memory against what torch keeps, and against sums that a person can check."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedConfig, Qwen3Config, Qwen3ForCausalLM, RwkvConfig

from tests.trainer.gradients import settings
from tests.trainer.ledger import trajectory
from trainer import head
from trainer import model as policy
from trainer.attention import suit
from trainer.memory import GIB, described, estimate
from trainer.packing import pack, plan

QWEN3_8B = Qwen3Config(
    vocab_size=151_936,
    hidden_size=4096,
    intermediate_size=12_288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    tie_word_embeddings=False,
)
PARAMETERS = 8_190_735_360


def of_8b(**trainer):
    config = settings("model", 16_384, dtype="bfloat16")
    trainer = {"ranks": 8, "gpus": list(range(8))} | trainer
    return estimate(
        config.model_copy(update={"trainer": config.trainer.model_copy(update=trainer)}), QWEN3_8B, PARAMETERS
    )


def test_the_sums_for_8_billion_parameters_on_eight_gpus():
    whole = of_8b()
    assert whole.weights == 12 * PARAMETERS / 8
    assert whole.gradients == 4 * PARAMETERS and whole.gathered == 2 * PARAMETERS
    each = 16 * 4096 + 8 * 12_288 + 16 * 4096 + 10 * 1024
    assert whole.activations == 16_384 * 36 * each
    assert whole.head == 6 * 151_936 * 4096
    again = of_8b(activation_checkpointing=True)
    assert again.activations == 16_384 * (36 * 2 * 4096 + each)
    assert f"{sum(again) / GIB:.1f} GiB a rank: weights 11.4, gradients 30.5, gathered 15.3, act" in str(again)


def test_what_each_setting_saves():
    whole = of_8b()
    layers = of_8b(gather_every="micro_batch")
    assert layers.gradients < 0.3 * whole.gradients and layers.gathered < 0.2 * whole.gathered
    assert of_8b(offload=True).weights == 0
    assert of_8b(replicas=2).weights == 2 * whole.weights


def test_a_model_without_attention_has_an_estimate_and_a_config_that_says_nothing_ends_no_run():
    config = settings("model", 4096)
    assert estimate(config, RwkvConfig(), 10**8).activations > 0
    assert described(config, RwkvConfig(), 10**8).startswith(
        f"{sum(estimate(config, RwkvConfig(), 10**8)) / GIB:.1f} GiB"
    )
    assert described(config, PreTrainedConfig(), 10**8).startswith("not known of PreTrainedConfig: ")


class Living(TorchDispatchMode):
    """The most bytes at once of what is made."""

    def __init__(self, there):
        super().__init__()
        self.seen, self.now, self.most = {tensor.untyped_storage().data_ptr() for tensor in there}, 0, 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        found = function(*arguments, **(options or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and (size := tensor.untyped_storage().nbytes()):
                storage = tensor.untyped_storage()
                if (address := storage.data_ptr()) not in self.seen:
                    self.seen.add(address)
                    self.now += size
                    self.most = max(self.most, self.now)
                    weakref.finalize(storage, self._gone, address, size)
        return found

    def _gone(self, address, size):
        self.seen.discard(address)
        self.now -= size


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_gradient_of_the_head_is_what_its_backward_pass_holds(dtype, monkeypatch):
    vocabulary, hidden, rows = 8192, 256, 1
    monkeypatch.setitem(head.CELLS, "cpu", rows * vocabulary)
    layer = torch.nn.Linear(hidden, vocabulary, bias=False, dtype=policy.DTYPES[dtype])
    states = torch.randn(16, hidden).to(layer.weight.dtype).requires_grad_()
    targets = torch.randint(vocabulary, (16,))
    logprobs, _ = head.logprobs_of(layer, layer, [], states, targets, 1.0, False)
    with Living([layer.weight, states, targets]) as living:
        logprobs.sum().backward()
    config = Qwen3Config(vocab_size=vocabulary, hidden_size=hidden)
    assert living.most == pytest.approx(estimate(settings("model", 1, dtype=dtype), config, 0).head, rel=0.03)


def test_at_most_three_chunks_of_logits_are_there_forward_and_two_backward(monkeypatch):
    vocabulary, rows = 8192, 8
    monkeypatch.setitem(head.CELLS, "cpu", rows * vocabulary)
    layer = torch.nn.Linear(1, vocabulary, bias=False)
    states, targets = torch.randn(20, 1, requires_grad=True), torch.randint(vocabulary, (20,))
    with Living([layer.weight, states, targets]) as forward:
        logprobs, _ = head.logprobs_of(layer, layer, [], states, targets, 1.0, False)
    with Living([layer.weight, states, targets]) as backward:
        logprobs.sum().backward()
    chunk = 4 * rows * vocabulary
    assert forward.most == pytest.approx(3 * chunk, rel=0.01)
    assert backward.most - layer.weight.nbytes == pytest.approx(2 * chunk, rel=0.01)


class Kept:
    """Bytes that autograd keeps for the backward pass, without the parameters."""

    def __init__(self, model):
        self.own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.seen = {}

    def __call__(self, tensor):
        if (address := tensor.untyped_storage().data_ptr()) not in self.own:
            self.seen[address] = tensor, tensor.untyped_storage().nbytes()
        return tensor

    @property
    def bytes(self):
        return sum(size for _, size in self.seen.values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_activations_are_those_that_autograd_keeps(dtype):
    trajectories = [trajectory(seed, longest=100) for seed in range(3)]
    micro = pack(plan([len(t.tokens) for t in trajectories], 4096)[0][0], trajectories)

    def kept(layers):
        config = Qwen3Config(
            vocab_size=320,
            hidden_size=192,
            intermediate_size=320,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            tie_word_embeddings=True,
        )
        model = Qwen3ForCausalLM(config).to(policy.DTYPES[dtype]).eval()
        suit(model, model.device)
        keep = Kept(model)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            policy.action_logprobs(model, micro)
        return keep.bytes, estimate(settings("model", micro.tokens.numel(), dtype=dtype), config, 0).activations

    (one, first), (three, third) = kept(1), kept(3)
    assert three - one == pytest.approx(third - first, rel=0.02)
