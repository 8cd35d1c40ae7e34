"""How a model lies on the ranks: FSDP2, float32 master weights, computation in `dtype`.

    rank 0   a part of every parameter ─┐ all-gather, layer by layer ─▶ whole, in `dtype` ─▶ forward, backward
    rank 1   the other part            ─┘                gradients ◀─ reduce-scatter, summed in float32

    trainer.replicas = 2      ranks 0 1 │ shards of one copy     gradients: reduce-scatter along a row,
                              ranks 2 3 │ shards of the other    then all-reduce down a column (HSDP)
    gather_every = "step"     all-gather ─ micro-batch ─ micro-batch ─ … ─ micro-batch ─ reduce-scatter

Each decoder layer is one unit. Embeddings, final norm and head are the root unit, so tied embeddings stay one
parameter. A model is built without memory for its parameters, sharded, and only then each rank allocates its part:
initial_weights.py or a checkpoint fills it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from pipeline.config import Config
from trainer.model import DTYPES, layers_of
from trainer.ranks import Ranks


def sharded(path: Path, config: Config, ranks: Ranks) -> PreTrainedModel:
    """The model in a Hugging Face folder, this rank's part of it allocated and not yet filled; no weight is read."""
    model = shard(without_weights(path), ranks, config.model.dtype, config.trainer.offload)
    device = torch.device("cpu") if config.trainer.offload else ranks.device
    parts: dict[torch.Tensor, torch.nn.Parameter] = {}  # one for both names of tied weights
    named = dict(model.named_parameters(remove_duplicate=False))
    for parameter in named.values():
        parts.setdefault(parameter, torch.nn.Parameter(torch.empty_like(parameter, device=device)))
    model.load_state_dict({name: parts[p] for name, p in named.items()}, strict=False, assign=True)
    return model


def without_weights(path: Path) -> PreTrainedModel:
    """The model in a Hugging Face folder, in float32: its parameters on the meta device, its buffers computed."""
    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    with _parameters_on_meta():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if (Path(path) / "generation_config.json").is_file():  # which is published with the weights
        model.generation_config = GenerationConfig.from_pretrained(path, local_files_only=True)
    return model.eval()


@contextmanager
def _parameters_on_meta():
    def to_meta(_module, _name, parameter):
        if parameter is None or parameter.is_meta:  # tied weights are registered twice, and stay one
            return None
        return torch.nn.Parameter(parameter.to("meta"), parameter.requires_grad)

    hook = register_module_parameter_registration_hook(to_meta)
    try:
        yield
    finally:
        hook.remove()


def shard(model: PreTrainedModel, ranks: Ranks, dtype: str, offload: bool = False) -> PreTrainedModel:
    """Shard over the ranks. Gradients are *summed* over them: the loss divides by the tokens of all of them already."""
    precision = MixedPrecisionPolicy(
        param_dtype=None if dtype == "float32" else DTYPES[dtype], reduce_dtype=torch.float32
    )
    waiting = CPUOffloadPolicy(pin_memory=ranks.device.type == "cuda") if offload else OffloadPolicy()
    for module in [*layers_of(model), model]:
        fully_shard(module, mesh=ranks.mesh, mp_policy=precision, offload_policy=waiting)
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    return model


def accumulated(model: FSDPModule, micro_batches: Sequence[Any], gather_every: str) -> Iterator[Any]:
    """The micro-batches of one optimizer step, each to be followed by its backward pass.

    gather_every = "step": weights stay whole from the first forward to the last backward pass, gradients are summed on
    each rank, and the last backward pass reduces them.
    """
    if gather_every == "micro_batch":
        yield from micro_batches
        return
    layers = [m for m in model.modules() if isinstance(m, FSDPModule) and m is not model]  # the root stays whole anyway
    for layer in layers:
        layer.set_reshard_after_forward(False, recurse=False)
    try:
        for number, micro in enumerate(micro_batches, 1):
            last = number == len(micro_batches)
            model.set_requires_gradient_sync(last)
            model.set_reshard_after_backward(last)
            yield micro
    finally:
        model.set_requires_gradient_sync(True)
        model.set_reshard_after_backward(True)
        for layer in layers:
            layer.set_reshard_after_forward(True, recurse=False)
