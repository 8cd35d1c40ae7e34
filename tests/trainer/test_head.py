"""Log-probs, entropies and their gradients, a few rows at a time, against log_softmax of all logits in float64."""

import pytest
import torch

from trainer import head
from trainer.head import logprobs_of

ROWS, HIDDEN, VOCABULARY = 50, 8, 96


class Scaled(torch.nn.Linear):
    """A head that is more than a linear map, with weights of its own."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.scale = torch.nn.Parameter(torch.tensor(1.7))

    def forward(self, hidden):
        return super().forward(hidden) * self.scale


HEADS = {
    "linear": lambda: torch.nn.Linear(HIDDEN, VOCABULARY, bias=False),
    "with a bias": lambda: torch.nn.Linear(HIDDEN, VOCABULARY),
    "of another kind": lambda: Scaled(HIDDEN, VOCABULARY),
}


def computed(layer, hidden, targets, rows, entropy_gradient, cap=lambda logits: 3 * torch.tanh(logits / 3)):
    """[n] log-probs and entropies, and the gradient of a sum of both for hidden states and weights."""
    hidden = hidden.clone().requires_grad_()
    layer.zero_grad()
    others = [weight for weight in layer.parameters() if weight is not layer.weight]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(head.CELLS, "cpu", rows * VOCABULARY)
        logprobs, entropy = logprobs_of(lambda h: cap(layer(h)), layer, others, hidden, targets, 0.7, entropy_gradient)
    return logprobs, entropy, gradients(layer, hidden, logprobs, entropy, entropy_gradient)


def gradients(layer, hidden, logprobs, entropy, entropy_gradient):
    weights = torch.linspace(-1, 2, ROWS).to(logprobs)
    ((weights * logprobs).sum() + (weights.flip(0) * entropy).sum() * entropy_gradient).backward()
    return [hidden.grad, *(weight.grad for weight in layer.parameters())]


def drawn(kind):
    torch.manual_seed(0)
    return HEADS[kind](), 2 * torch.randn(ROWS, HIDDEN), torch.randint(VOCABULARY, (ROWS,))


def in_float64(layer, hidden, targets, entropy_gradient):
    layer, hidden = layer.double(), hidden.double().requires_grad_()
    layer.zero_grad()
    logs = torch.log_softmax(3 * torch.tanh(layer(hidden) / 3) / 0.7, -1)
    logprobs, entropy = logs.gather(-1, targets[:, None]).squeeze(-1), -(logs.exp() * logs).sum(-1)
    return logprobs, entropy, gradients(layer, hidden, logprobs, entropy, entropy_gradient)


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("rows", [1, 7, ROWS])
@pytest.mark.parametrize("kind", HEADS)
def test_they_are_those_of_all_logits(kind, rows, entropy_gradient):
    layer, hidden, targets = drawn(kind)
    found = computed(layer, hidden, targets, rows, entropy_gradient)
    expected = in_float64(layer, hidden, targets, entropy_gradient)
    assert found[1].requires_grad == entropy_gradient
    for ours, its in zip((*found[:2], *found[2]), (*expected[:2], *expected[2]), strict=True):
        torch.testing.assert_close(ours.double(), its, rtol=1e-5, atol=1e-5)


def test_in_16_bits_the_gradient_of_the_head_is_summed_in_32():
    """Row by row it is as near the exact one as all at once."""
    layer, hidden, targets = drawn("linear")
    layer, hidden = layer.bfloat16(), hidden.bfloat16()
    once = computed(layer, hidden, targets, ROWS, False)[2][1].double()
    by_row = computed(layer, hidden, targets, 1, False)[2][1].double()
    exact = in_float64(layer, hidden, targets, False)[2][1]
    assert (by_row - exact).norm() < 1.2 * (once - exact).norm() + 1e-3 * exact.norm()


@pytest.mark.parametrize("kind", HEADS)
def test_under_autocast_the_backward_pass_computes_what_the_forward_pass_did(kind):
    layer, hidden, targets = drawn(kind)
    exact = computed(layer, hidden, targets, 7, True, cap=lambda logits: logits)
    exact_gradients = [gradient.clone() for gradient in exact[2]]
    layer.zero_grad()
    others = [weight for weight in layer.parameters() if weight is not layer.weight]
    with torch.autocast("cpu", torch.bfloat16):
        logprobs, entropy = logprobs_of(layer, layer, others, hidden.requires_grad_(), targets, 0.7, True)
    assert 1e-5 < (logprobs - exact[0]).abs().max() < 0.1
    for ours, its in zip(gradients(layer, hidden, logprobs, entropy, True), exact_gradients, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - its).norm() < 0.02 * its.norm()


LIKELY = [(10.5, 0.93), (13, 0.99), (18, 0.9998)]


def of_likely_tokens(logit, under_autocast):
    """Gradients for hidden states and weight: here, of log_softmax in float32, and of that in float64."""
    torch.manual_seed(0)
    weight, targets = 0.1 * torch.randn(1024, 64), torch.randint(1024, (256,))
    aim = weight[targets]
    hidden = 0.5 * torch.randn(256, 64) + logit * aim / aim.pow(2).sum(-1, keepdim=True)
    weight, hidden = weight.bfloat16(), hidden.bfloat16()
    stored = torch.float32 if under_autocast else torch.bfloat16

    def plain(layer, hidden):
        return torch.log_softmax(layer(hidden), -1, dtype=torch.promote_types(hidden.dtype, torch.float32))

    def ours(layer, hidden):
        return logprobs_of(layer, layer, [], hidden, targets, 1.0, False)[0]

    def found(compute, dtype):
        layer, own = torch.nn.Linear(64, 1024, bias=False, dtype=dtype), hidden.to(dtype, copy=True).requires_grad_()
        layer.weight.data.copy_(weight)
        with torch.autocast("cpu", torch.bfloat16, enabled=under_autocast and dtype == torch.float32):
            logprobs = compute(layer, own)
        if logprobs.ndim == 2:
            logprobs = logprobs.gather(-1, targets[:, None]).squeeze(-1)
        logprobs.sum().backward()
        return logprobs.detach().double().exp(), own.grad.double(), layer.weight.grad.double()

    return found(ours, stored), found(plain, stored), found(plain, torch.float64)


@pytest.mark.parametrize("under_autocast", [False, True])
@pytest.mark.parametrize(("logit", "p"), LIKELY)
def test_in_16_bits_the_gradient_of_a_likely_token_is_as_exact_as_by_log_softmax(logit, p, under_autocast):
    """1 - p, of which it is made, is less than what 16 bits tell apart near p."""
    ours, its, exact = of_likely_tokens(logit, under_autocast)
    assert exact[0].median() == pytest.approx(p, abs=0.2 * (1 - p))
    for i in (1, 2):
        error, usual = ((found[i] - exact[i]).norm() / exact[i].norm() for found in (ours, its))
        assert error < 1.1 * usual + 1e-3 < 0.06


def test_no_rows_have_no_gradient():
    layer, hidden, targets = drawn("linear")
    logprobs, entropy = logprobs_of(layer, layer, [], hidden[:0].requires_grad_(), targets[:0], 1.0, True)
    (logprobs.sum() + entropy.sum()).backward()
    assert len(logprobs) == 0 and not layer.weight.grad.any()
