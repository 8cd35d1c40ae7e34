"""How a model lies on the ranks: FSDP2, float32 master weights, computation in `dtype`.

    rank 0   a part of every parameter ─┐ all-gather, layer by layer ─▶ whole, in `dtype` ─▶ forward, backward
    rank 1   the other part            ─┘                gradients ◀─ reduce-scatter, summed in float32

Each decoder layer is one unit. Embeddings, final norm and head are the root unit, so tied embeddings stay one
parameter.
"""

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from trainer.model import DTYPES
from trainer.ranks import Ranks


def shard(model: PreTrainedModel, ranks: Ranks, dtype: str) -> PreTrainedModel:
    """Shard over the ranks. Gradients are *summed* over them: the loss divides by the tokens of all of them already."""
    model.to(ranks.device)
    policy = MixedPrecisionPolicy(param_dtype=None if dtype == "float32" else DTYPES[dtype], reduce_dtype=torch.float32)
    layers = [m for m in model.modules() if type(m).__name__ in (model._no_split_modules or ())]
    for module in [*layers, model]:
        fully_shard(module, mesh=ranks.mesh, mp_policy=policy)
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    return model
