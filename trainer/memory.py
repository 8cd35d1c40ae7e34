"""What one rank's device has to hold, before it is found out: arithmetic, part by part.

    n parameters, s = ranks / replicas shards, c bytes of a computed number (2 in bfloat16), T = trainer.token_budget

    weights       12 n / s                 float32 masters and AdamW's two moments; nothing with trainer.offload
    gradients     4 n                      whole until the step's last backward pass (gather_every = "step")
                  4 n / s + 4 units        else; a unit is a layer, or embeddings, final norm and head together
    gathered      c n                      whole from the step's first forward pass on (gather_every = "step")
                  c (root + 2 layers)      else: what is computed with, and what comes next
    activations   T · layers · A           A of a layer like Qwen3's: 16 h + 8 w + 16 q + 10 k bytes in bfloat16, of its
                                           hidden, intermediate, query and key sizes; of others rather less
                  T · (layers · c h + A)   with trainer.activation_checkpointing
    logits        10 bytes of each cell of head.py's chunk, whatever the vocabulary
    head          6 V · hidden             the gradient of its weight: summed in float32, and in 16 bits beside it a
                                           chunk's, then the cast sum; 4 V · hidden in float32

Not in it: CUDA's and NCCL's own, 1 to 2 GiB; what the allocator cannot use, some percent; the reference of loss.kl,
4 n / s and a gathered layer. A publication needs publish.bucket_mb when the activations are gone.
"""

from typing import NamedTuple

from transformers import PretrainedConfig

from pipeline.config import Config
from trainer.head import CELLS

GIB = 2**30
# bytes a token and a layer keeps for its backward pass, for each of: hidden, intermediate, query, key; measured
KEPT = {"bfloat16": (16, 8, 12, 10), "float32": (24, 16, 20, 16)}
REPEATED = 4  # more of each query, where keys and values are repeated for CUDA's kernel


class Memory(NamedTuple):
    """Bytes."""

    weights: float
    gradients: float
    gathered: float
    activations: float
    logits: float
    head: float

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in self._asdict().items())
        return f"{sum(self) / GIB:.1f} GiB a rank: {parts}"


def estimate(config: Config, model: PretrainedConfig, parameters: int) -> Memory:
    """Of a rank of the run, for a model with so many parameters (tied ones once)."""
    trainer, text = config.trainer, model.get_text_config()
    shards, size = trainer.ranks // trainer.replicas, 2 if config.model.dtype == "bfloat16" else 4
    embedding = text.vocab_size * text.hidden_size
    root = embedding if text.tie_word_embeddings else 2 * embedding
    layer = (parameters - root) / text.num_hidden_layers
    own = 0 if trainer.offload else parameters / shards
    if trainer.gather_every == "step":
        gradients, gathered = 4 * parameters, size * parameters
    else:
        gradients, gathered = 4 * own + 4 * max(root, layer), size * (root + 2 * layer)
    kept = _kept(text, config.model.dtype, bool(trainer.gpus))
    layers = text.num_hidden_layers
    each_token = layers * size * text.hidden_size + kept if trainer.activation_checkpointing else layers * kept
    cells = CELLS["cuda" if trainer.gpus else "cpu"]
    head = (4 if size == 4 else 6) * embedding
    return Memory(12 * own, gradients, gathered, trainer.token_budget * each_token, 10 * cells, head)


def described(config: Config, model: PretrainedConfig, parameters: int) -> str:
    """The estimate, for the log: no run ends because a model's config does not say what it is made of."""
    try:
        return str(estimate(config, model, parameters))
    except (AttributeError, TypeError, ArithmeticError) as error:
        return f"not known of {type(model).__name__}: {error}"


def _kept(text: PretrainedConfig, dtype: str, gpu: bool) -> float:
    """A: bytes of one token in one layer."""
    heads = getattr(text, "num_attention_heads", 0)  # none: recurrent layers alone
    head = heads and (getattr(text, "head_dim", None) or text.hidden_size // heads)
    query, key = head * heads, head * (getattr(text, "num_key_value_heads", None) or heads)
    wide = (
        getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    )  # of models that do not say it, such as GPT-2
    sizes = text.hidden_size, wide, query, key
    return sum(a * b for a, b in zip(KEPT[dtype], sizes, strict=True)) + (REPEATED * query if gpu else 0)
