"""One update of a model of Qwen3-0.6B's shape on one GPU: MFU, tokens a second, peak memory.

    random weights, tied embeddings, bf16 compute and float32 masters; 65,536 tokens in 13 trajectories of 2k to 8k,
    a quarter of each prompt; the product's own start, packing, attention, loss, clip and AdamW

    flops = 3 · ( 2 · W · tokens  +  2 · V · H · action tokens  +  4 · layers · heads · D · Σ L (L + 1) / 2 )
    MFU   = flops / (seconds of an update · the GPU's dense bf16 peak)

3: a forward pass, and twice as much backward. W: what each token is multiplied with (attention's four projections, the
MLP's three); the head, V · H, only where an action token is predicted. Attention is causal and within a trajectory, two
products of 2 · D operations for each pair of tokens that see each other, in each head. Nothing that is computed twice
counts twice. Times include everything from packed tensors to new weights, and end with the device idle.

`python -m tests.bench gpu`; without click, `python -m tests.bench.gpu`. Needs no Redis server. Without CUDA it computes
a tiny model on the CPU, to show that the script runs, and measures nothing.
"""

import importlib.util
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.result import Result, markdown

NEEDED = ("torch", "transformers", "safetensors", "numpy", "pydantic", "msgpack", "redis", "xxhash")
WARM_UP, MEASURED = 2, 5
TARGET = 0.40
LENGTHS = (8192, 8192, 8192, 7168, 6144, 5120, 4096, 4096, 4096, 3072, 3072, 2048, 2048)  # 65,536 tokens
GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """layers, hidden, intermediate size, heads, those of keys and values, size of a head, vocabulary."""

    layers: int = 28
    hidden: int = 1024
    wide: int = 3072
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 151_936

    def flops(self, lengths: tuple[int, ...], action_tokens: int) -> float:
        projections = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        each_token = self.layers * (projections + 3 * self.hidden * self.wide)
        pairs = sum(length * (length + 1) / 2 for length in lengths)
        attention = 4 * self.layers * self.heads * self.head_dim * pairs
        return 3 * (2 * each_token * sum(lengths) + 2 * self.vocabulary * self.hidden * action_tokens + attention)


TINY = Shape(layers=2, hidden=64, wide=128, heads=4, kv_heads=2, head_dim=16, vocabulary=512)


def measure() -> list[Result]:
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise RuntimeError(f"this needs `pip install {' '.join(missing)}`")
    import torch

    name = "one update of Qwen3-0.6B's shape, bf16, 64k tokens in sequences of 2k-8k"
    if not torch.cuda.is_available():
        updates(TINY, tuple(length // 32 for length in LENGTHS), gpus=[])
        return [Result(f"{name}: MFU", "not measured: no CUDA here; a tiny model ran on the CPU", f">= {TARGET:g}")]
    from trainer.throughput import peak

    gpu = torch.cuda.get_device_name()
    seconds, flops = updates(Shape(), LENGTHS, gpus=[0])
    median, most = statistics.median(seconds), peak(gpu, "bfloat16")
    rates = tuple(sum(LENGTHS) / s for s in seconds)
    results = [
        Result(f"{name}: tokens/s, {gpu}", f"{sum(LENGTHS) / median:,.0f}", rounds=rates),
        Result("the same: seconds, and TFLOP/s", f"{median:.3f}, {flops / median / 1e12:.0f}", rounds=tuple(seconds)),
        Result("the same: peak memory allocated", f"{torch.cuda.max_memory_allocated() / GIB:.1f} GiB"),
    ]
    if most is None:
        return [*results, Result("the same: MFU", f"not known: the peak of {gpu} is not in trainer/throughput.py")]
    mfu = tuple(flops / s / most for s in seconds)
    share = statistics.median(mfu)
    return [*results, Result("the same: MFU", f"{share:.1%}", f">= {TARGET:.0%}", share >= TARGET, mfu)]


def updates(shape: Shape, lengths: tuple[int, ...], gpus: list[int]) -> tuple[list[float], float]:
    """Seconds of each measured update, and its FLOPs."""
    from tests.bench.drawn import trajectory
    from trainer.ranks import joined
    from trainer.resume import make_updater

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        write_model(Path(folder), shape, "cuda" if gpus else "cpu")
        config = settings(Path(folder), max(lengths), gpus)
        trajectories = [trajectory(i, length, shape.vocabulary) for i, length in enumerate(lengths)]
        with joined(config.trainer) as ranks:
            updater = make_updater(Path(folder), config, ranks)
            batch = updater.prepare(trajectories)
            micro = " + ".join(str(micro.tokens.numel()) for micro in batch.minibatches[0])
            print(f"attention: {updater.layout}; micro-batches of {micro} tokens", file=sys.stderr, flush=True)
            seconds = []
            for number in range(WARM_UP + MEASURED):
                began = time.perf_counter()
                updater.update(batch, version=number)
                synchronize(ranks.device)
                seconds.append(time.perf_counter() - began)
                print(f"update {number}: {seconds[-1]:.3f} s", file=sys.stderr, flush=True)
    return seconds[WARM_UP:], shape.flops(lengths, sum(t.action_tokens for t in trajectories))


def synchronize(device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def settings(folder: Path, longest: int, gpus: list[int]):
    from pipeline.config import Config

    return Config.model_validate(
        {
            "run": {"name": "bench"},
            "model": {"path": folder, "dtype": "bfloat16"},
            "data": {"tasks": {"chain_sum": {}}},
            "rollout": {"context_length": longest, "max_tokens": 64},
            # the log-probs of these engines are made up: no alarm, which would compute them once more
            "trainer": {"gpus": gpus, "token_budget": 2 * longest, "mismatch_alarm": 1e9},
        }
    )


def write_model(folder: Path, shape: Shape, device: str) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.wide,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=2 * max(LENGTHS),
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device(device):
        Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    print(markdown(measure()))
