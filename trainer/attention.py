"""Attention over trajectories that lie one after another in a single row: no mask, and no cell outside a block.

    row      │ trajectory 0     │ trajectory 1 │ trajectory 2        │      cu_seq_lens  0  18  32  53
    scores   │▙                 .              .                     │      of a row of T tokens only Σ L² / 2 cells,
             .                  │▙             .                     │      instead of T²
             .                  .              │▙                    │

The function is registered with transformers under NAME, and the borders reach it as the arguments of a model's forward
that transformers has for flash attention. On CUDA in 16 bits it is torch's own varlen kernel; elsewhere
(the CPU, float32) sdpa's causal kernel, trajectory by trajectory.

A model takes it if transformers would run it with flash attention through the same interface: such a model hands every
peculiarity of its attention over as an argument. Those that are not known here are refused, never left out.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PreTrainedModel

from pipeline.errors import HeadraceError
from trainer.packing import Layout

NAME = "headrace"
UNKNOWN = ("softcap", "s_aux", "sinks", "position_bias")  # what a model may ask of its attention, and not of this one


class AttentionUnsuitable(HeadraceError):
    """A model's attention is not what this function computes."""

    code = "ATTENTION"


@torch.no_grad()
def suit(model: PreTrainedModel, device: torch.device) -> Layout:
    """How the trajectories of a micro-batch may lie, and the model is given the attention for it.

    Measured, once, on two trajectories of four tokens: the second must not change with the first, and be what it is
    without it.
    """
    vocabulary = model.config.get_text_config().vocab_size
    first, another, own = (torch.arange(12, device=device) * max(1, vocabulary // 12) % vocabulary).split(4)
    positions = torch.arange(4, device=device).repeat(2)

    def second(before: torch.Tensor, rows: int = 1, **more) -> torch.Tensor:
        ids = torch.cat([before, own])
        inputs = {"input_ids": ids.view(rows, -1), "position_ids": positions.view(rows, -1), "use_cache": False}
        return model(**inputs, **more).logits.reshape(8, -1)[4:]

    alone, usual = second(first, rows=2), model.config._attn_implementation

    def same(one: torch.Tensor, other: torch.Tensor, bound: float) -> bool:
        return bool((one.float() - other.float()).abs().max() <= bound * alone.float().std())

    def separate(**more) -> bool:
        together, changed = second(first, **more), second(another, **more)
        # One kernel twice rounds alike: a layer that keeps trajectories apart changes nothing, experts, which get other
        # numbers of tokens, 1e-6 of what logits vary by; a layer that does not, 4e-3 and more, in 16 bits as well.
        # Two kernels do not, in 16 bits by up to a tenth of it (Qwen3-0.6B's shape): so much tells positions only.
        positions_bound = 0.05 if alone.dtype == torch.float32 else 0.5
        return same(together, changed, 1e-4) and same(together, alone, positions_bound)

    if model._supports_flash_attn and model._supports_attention_backend:
        # No mask is registered with it: then transformers makes none, and nothing of the size of tokens² exists.
        AttentionInterface.register(NAME, attend)
        model.config._attn_implementation = NAME
        try:
            if separate(**borders([4, 4], device)):
                return "flat"
        except AttentionUnsuitable:
            pass
        model.config._attn_implementation = usual
    return "rows" if separate() else "alone"


def described(model: PreTrainedModel, layout: Layout, device: torch.device, dtype: str) -> str:
    """The attention that `suit` chose, for the log; dtype: that the model computes in."""
    if layout == "flat":
        kernel = (
            "sdpa, trajectory by trajectory" if device.type == "cpu" or dtype == "float32" else "torch's varlen kernel"
        )
        return f"{kernel}; no mask, nothing padded"
    rows = "side by side in rows, with a mask" if layout == "rows" else "a row for each, padded"
    return f"the model's own ({model.config._attn_implementation}); trajectories {rows}"


def borders(lengths: Sequence[int], device: torch.device) -> dict:
    """The arguments of a model's forward that say how long each trajectory in the row is."""
    ends = F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(device, torch.int32)
    longest = max(lengths)
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **others,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each trajectory.

    query                [rows, heads, tokens, D]
    key, value           [rows, fewer heads, tokens, D]; a value may be narrower than a key
    sliding_window       a token sees so many, itself among them; None: all before it
    cu_seq_lens_q        where trajectories begin and end in a single row; None: each row is one
    Returns ([rows, tokens, heads, D of value], None).
    """
    if asked := [name for name in UNKNOWN if others.get(name) is not None]:
        raise AttentionUnsuitable(f"{type(module).__name__} asks its attention for {', '.join(asked)}")
    if attention_mask is not None or query.shape[2] != key.shape[2] or others.get("is_causal") is False:
        raise AttentionUnsuitable(f"{type(module).__name__} has a mask, a cache or attention that is not causal")
    if cu_seq_lens_q is not None and query.device.type != "cpu" and query.dtype in (torch.bfloat16, torch.float16):
        return _varlen(query, key, value, cu_seq_lens_q, max_length_q, scaling, sliding_window), None
    lengths = [query.shape[2]] if cu_seq_lens_q is None else cu_seq_lens_q.diff().tolist()
    return _one_by_one(query, key, value, lengths, scaling, sliding_window), None


def _varlen(query, key, value, ends, longest: int, scaling, window) -> torch.Tensor:
    """Of torch 2.11 and later, which differ in what they know of fewer heads: these are repeated here."""
    heads, width = query.shape[1], value.shape[-1]
    key, value = (tensor.repeat_interleave(heads // tensor.shape[1], 1) for tensor in (key, value))
    value = F.pad(value, (0, query.shape[-1] - width))  # the kernel has one width for all three
    rows = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    before = -1 if window is None else window - 1
    found = varlen_attn(*rows, ends, ends, longest, longest, scale=scaling, window_size=(before, 0))
    return found[None, ..., :width]


def _one_by_one(query, key, value, lengths: list[int], scaling, window) -> torch.Tensor:
    # split, not slices: the gradient of a slice is as long as the row
    parts = zip(*(tensor.split(lengths, 2) for tensor in (query, key, value)), strict=True)
    grouped = query.shape[1] != key.shape[1]
    found = []
    for q, k, v in parts:
        mask = None if window is None or q.shape[2] <= window else _band(q.shape[2], window, q.device)
        found.append(
            F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
            ).transpose(1, 2)
        )
    return torch.cat(found, 1)


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    """[length, length] bool: the last `window` tokens up to each."""
    whole = torch.ones(length, length, dtype=torch.bool, device=device)
    return whole.tril() & whole.triu(1 - window)
