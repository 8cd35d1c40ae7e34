"""How fast an update is: what its model computes, by what the device could compute at most.

    flops  = passes · (2 · weights · tokens  +  2 · head · action tokens  +  4 · layers · width · pairs)
    mfu    = flops / (seconds · ranks · peak)

    weights   parameters that every token is multiplied with: neither the embedding, which is looked up, nor the head,
              which only action tokens reach; of experts, the share that a token is sent to
    width     heads · size of one, of queries
    pairs     Σ L (L + 1) / 2 over the trajectories: attention is causal and stays within one; less in a sliding window
    passes    3: forward, and twice as much backward; 1 more if log-probs are computed before the update, and for a
              reference. What activation checkpointing or chunks of logits compute once more does not count.

PaLM 2204.02311, Appendix B, has 6 N + 12 L H Q T a token, which is the same but for the causal half and the head.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from trainer.ranks import Ranks

GIB = 2**30

# name of the device, its words | dense peak in bfloat16, FLOP/s, accumulated in float32 | in float32, no tensor cores
# NVIDIA's data sheets (those of "sparsity" halved), and for the 4090 the Ada architecture's white paper, appendix A
PEAKS = {
    "A100": (312e12, 19.5e12),
    "H100 NVL": (835e12, 60e12),
    "H100 PCIe": (756e12, 51e12),
    "H100": (989e12, 67e12),
    "H200": (989e12, 67e12),
    "B200": (2250e12, 80e12),
    "L40S": (362e12, 91.6e12),
    "RTX 4090": (165.2e12, 82.6e12),
}


def peak(name: str, dtype: str) -> float | None:
    """FLOP/s of the device that torch.cuda calls `name`, computing in `dtype`; None: not known."""
    known = next((peaks for words, peaks in PEAKS.items() if words in name), None)
    return known and known[dtype == "float32"]


def peak_of(ranks: Ranks, dtype: str) -> float | None:
    """Of the devices of all ranks together, which are of one kind."""
    if ranks.device.type != "cuda":
        return None
    one = peak(torch.cuda.get_device_name(ranks.device), dtype)
    return one and ranks.size * one


class Costs(NamedTuple):
    """FLOPs of one forward pass of a model."""

    token: float
    action_token: float
    windows: list[tuple[int | None, float]]  # of each layer with attention: how far it looks, FLOPs a pair

    def forward(self, lengths: Sequence[int], action_tokens: int) -> float:
        """lengths: of each trajectory, in tokens."""
        lengths = np.asarray(lengths, np.float64)
        attention = sum(cost * pairs(lengths, window).sum() for window, cost in self.windows)
        return float(self.token * lengths.sum() + self.action_token * action_tokens + attention)


def pairs(lengths: np.ndarray, window: int | None) -> np.ndarray:
    """Of a token and one that it looks at: itself, those before it, `window` at most."""
    near = lengths if window is None else np.minimum(lengths, window)
    return near * (near + 1) / 2 + (lengths - near) * near


def costs_of(model: PreTrainedModel) -> Costs:
    """Sharded or not."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings().weight
    looked_up = {id(head), id(model.get_input_embeddings().weight)}
    weights = sum(p.numel() * _used(name, config) for name, p in model.named_parameters() if id(p) not in looked_up)
    heads = getattr(config, "num_attention_heads", 0)  # none: recurrent layers alone
    width = heads and heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    window = getattr(config, "sliding_window", None)
    every = "full_attention" if window is None else "sliding_attention"
    kinds = getattr(config, "layer_types", None) or [every] * config.num_hidden_layers
    windows = {"full_attention": None, "sliding_attention": window}  # other kinds are linear in the length
    attention = [(windows[kind], 4.0 * width) for kind in kinds if width and kind in windows]
    return Costs(2.0 * weights, 2.0 * head.numel(), attention)


def _used(name: str, config) -> float:
    """The share of a parameter that a token is multiplied with; 1 for experts whose number has another name."""
    if ".experts." not in name:
        return 1.0
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    there = next((count for n in names if (count := getattr(config, n, None))), None)
    chosen = getattr(config, "num_experts_per_tok", None)
    return chosen / there if chosen and there else 1.0


def rates(tokens: int, flops: float, seconds: float, peak: float | None) -> dict[str, float]:
    """tokens_per_second, and mfu if the peak of all ranks together is known; seconds: of the update alone."""
    seconds = max(seconds, 1e-9)
    told = {"tokens_per_second": round(tokens / seconds, 1)}
    if peak is not None:
        told["mfu"] = round(flops / seconds / peak, 4)
    return told


def peak_memory_gib(device: torch.device) -> float:
    """The most that this process has had at once: of the GPU, allocated by torch; else of the CPU, resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    # not ru_maxrss, which a process has from the one that started it
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024 / GIB
