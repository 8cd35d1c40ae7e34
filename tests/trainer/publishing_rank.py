"""One of two ranks that publish a model of 128 MiB with a bucket of 16, and how much memory that took beyond its shard.

MODEL FOLDER ─▶ FOLDER/1: rank 0 alone, before the model was sharded   FOLDER/2: both   stdout: {"files", "beyond"}
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from pipeline.config_training import Trainer
from trainer import publish
from trainer.publish import write_weights
from trainer.ranks import ALONE, joined
from trainer.sharding import shard
from trainer.tensor_writer import Writer

BUCKET_MB = 16
PROBE = list(range(32))


def resident(what: str) -> int:
    """Bytes; what: "VmRSS" now, or "VmHWM" at most since the last `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main(base: Path, folder: Path) -> None:
    torch.manual_seed(1)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": True}
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 32, "vocab_size": 320}
    model = AutoModelForCausalLM.from_config(Qwen3Config(**sizes, **heads), dtype=torch.float32).eval()
    files, begin = [], Writer.begin

    def noted(self, path, entries):
        files.append(path.name)
        begin(self, path, entries)

    Writer.begin = noted
    with joined(Trainer(ranks=2)) as ranks:
        if ranks.first:
            write_weights(model, folder / "1", 1, base, "bfloat16", PROBE, ALONE, BUCKET_MB)
        files.clear()
        model = shard(model, ranks, "bfloat16")
        logprobs = publish.probe_logprobs(model, PROBE)
        publish.probe_logprobs = lambda *_: logprobs  # a forward pass holds a whole layer, as any other one does
        ranks.gather(None)
        forget_peak()
        before = resident("VmRSS")
        write_weights(model, folder / "2", 2, base, "bfloat16", PROBE, ranks, BUCKET_MB)
        beyond = resident("VmHWM") - before
    print(json.dumps({"files": files, "beyond": beyond}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
