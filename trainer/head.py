"""Log-probs and entropy of tokens from hidden states: never [tokens, vocabulary] at once, neither forward nor backward.

    hidden [n, H] ─┬─ [r, H] ─▶ logits [r, V] ─▶ log p(target), entropy                                   r · V <= CELLS
                   └─ …                            └─ [n] each, nothing else is kept for the backward pass:
                      [r, H] ─▶ logits [r, V], once more ─▶ ∂logits ─┬▶ ∂hidden [r, H]
                                                                     └▶ ∂weight [V, H] += …
    ∂logits · temperature = (onehot(target) - p) ∂logprob - p (log p + entropy) ∂entropy

How logits are made of hidden states is the model's own affair: a head, and before or after it perhaps a scale or a soft
cap. Only the gradient of the head's weight is computed here, so that it is summed up in place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F

CELLS = {"cpu": 2**23 - 1, "cuda": 2**27}  # logits at once: less than 32 MiB, which malloc keeps; 512 MiB, of a GPU

Logits = Callable[[torch.Tensor], torch.Tensor]  # [r, H] -> [r, V]


def logprobs_of(
    logits_of: Logits,
    head: torch.nn.Module,
    others: list[torch.nn.Parameter],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    entropy_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """([n] log-probs of the targets, [n] entropies), float32 nats, of the tempered distribution.

    head              the layer in `logits_of` that maps to the vocabulary
    others            whatever else in it is trained
    entropy_gradient  whether the entropies have a gradient too
    """
    rows = max(1, CELLS[hidden.device.type] // len(head.weight))
    options = temperature, entropy_gradient, rows
    return _Logprobs.apply(logits_of, head, options, targets, hidden, head.weight, *others)


class _Logprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_of, head, options, targets, hidden, *weights):
        temperature, entropy_gradient, rows = options
        logprobs, entropy = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(2))
        parts = (tensor.split(rows) for tensor in (hidden, targets, logprobs, entropy))
        logs = p = None
        for own, wanted, logprob, spread in zip(*parts, strict=True):
            logs = _log_softmax(logits_of(own), temperature, logs)
            p = torch.exp(logs, out=_like(logs, p))
            logprob.copy_(logs.gather(-1, wanted[:, None]).squeeze(-1))
            spread.copy_(-torch.einsum("rv,rv->r", p, logs))
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        ctx.save_for_backward(targets, entropy, hidden, *weights)
        kind = hidden.device.type
        cast = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        ctx.how = logits_of, head, options, cast
        return logprobs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, of_logprobs, of_entropy):
        targets, entropy, hidden, *weights = ctx.saved_tensors
        logits_of, head, (temperature, entropy_gradient, rows), cast = ctx.how
        of_hidden = torch.empty_like(hidden)
        sums = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
        numbers = (
            number[:, None] for number in (targets, entropy, of_logprobs / temperature, of_entropy / temperature)
        )
        parts = (tensor.split(rows) for tensor in (hidden, of_hidden, *numbers))
        logs = None
        for own, out, wanted, spread, of_logprob, of_spread in zip(*parts, strict=True):
            with torch.enable_grad(), cast, _summing(head, sums[0]):
                own = own.detach().requires_grad_()
                logits = logits_of(own)
            logs = _log_softmax(logits.detach(), temperature, logs)
            p = logs.exp() if entropy_gradient else logs.exp_()
            weight = -of_logprob - of_spread * logs.add_(spread) if entropy_gradient else -of_logprob
            # 1 - p of a likely token is in float32 still: p alone in 16 bits is off by as much.
            gradient = p.mul_(weight).scatter_add_(-1, wanted, of_logprob).to(logits.dtype)
            del p, weight
            found = torch.autograd.grad(logits, [own, *weights], gradient, allow_unused=True)
            out.copy_(found[0])
            for total, more in zip(sums, found[1:], strict=True):
                if more is not None:
                    total.add_(more)
            del logits, gradient, found, more  # before the next ones are computed
        of_weights = [total.to(weight.dtype) for total, weight in zip(sums, weights, strict=True)]
        return None, None, None, None, of_hidden, *of_weights


def _log_softmax(logits: torch.Tensor, temperature: float, former: torch.Tensor | None) -> torch.Tensor:
    """[r, V] float32, one pass over them if nothing is to be tempered; former: of the chunk before."""
    tempered = logits if temperature == 1 else logits.float() / temperature
    return torch.log_softmax(tempered, -1, dtype=torch.float32, out=_like(logits, former))


def _like(chunk: torch.Tensor, former: torch.Tensor | None) -> torch.Tensor:
    """Room for [r, V] float32: that of the chunk before, which had as many rows or more. Room that is given back and
    asked for again leaves holes in malloc's heap, ten of them at times."""
    return torch.empty_like(chunk, dtype=torch.float32) if former is None else former[: len(chunk)]


@contextmanager
def _summing(head: torch.nn.Module, total: torch.Tensor) -> Iterator[None]:
    """The gradient of the head's weight is added to `total` [V, H]; in float32 without one of its size in between.

    In 16 bits each chunk's is one, by the kernels for 16 bits, and then added.
    """
    if type(head) is not torch.nn.Linear:  # it computes something else
        yield
        return

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        logits = _Summed.apply(hidden, head.weight, total)
        return logits if head.bias is None else logits + head.bias

    head.forward = forward
    try:
        yield
    finally:
        del head.forward


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, total):
        ctx.save_for_backward(hidden, weight)
        ctx.total = total
        return F.linear(hidden, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        hidden, weight = ctx.saved_tensors
        rows, columns = gradient.flatten(0, -2), hidden.flatten(0, -2)
        if rows.dtype == ctx.total.dtype:
            ctx.total.addmm_(rows.T, columns)
        else:  # of 16 bits: summed in float32 all the same
            ctx.total.add_(rows.T @ columns.to(rows.dtype))
        return gradient @ weight.to(gradient.dtype), None, None
