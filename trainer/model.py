"""The policy: any causal language model of Hugging Face, by path; trainer/sharding.py lays it on the ranks.

    MicroBatch ─▶ embeddings ─▶ layers (each fully_shard-ed) ─▶ hidden [rows, width, H]
                                                                   │ only the cells that predict an action token
                                                                   ▼
                                         trainer/head.py ─▶ log_softmax(logits / temperature), a few rows at a time

Attention within each trajectory: trainer/attention.py, for a model that takes it. For others no mask is given, only
positions that restart with every trajectory, and transformers derives a causal, block-diagonal mask from them. A model
that does not restart with the positions (recurrent or linear attention) has one trajectory a row. Which of the three it
is, is measured when a model is loaded: `attention.suit`.
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from pipeline.errors import HeadraceError
from trainer import attention
from trainer.head import logprobs_of
from trainer.packing import MicroBatch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ModelError(HeadraceError):
    """A model folder that cannot be used."""

    code = "MODEL"


def load(path: Path) -> PreTrainedModel:
    """The model in a Hugging Face folder, with float32 weights. Raises ModelError: what is missing and what to do."""
    path = Path(path)
    advice = "set model.path to a Hugging Face model folder, or remove model.path and use [model.tiny]"
    if not path.is_dir():
        raise ModelError(f"model folder {path}: no such folder; {advice}")
    if not (path / "config.json").is_file():
        raise ModelError(f"model folder {path}: config.json is missing; {advice}")
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"model folder {path}: no *.safetensors file in it; copy the weights there, or {advice}")
    logging.disable_progress_bar()
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are named below
        )
    except Exception as error:  # transformers, safetensors and json each raise their own kinds
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"model folder {path} cannot be loaded ({reason}); copy it again whole, or {advice}"
        ) from error
    _check(path, found, advice)
    # No dropout: the ratio to the policy that sampled must be the only thing that varies.
    return model.eval()


def _check(path: Path, found: dict, advice: str) -> None:
    """What transformers would make up or leave out instead is an error that names it."""
    mismatched = {name for name, *_ in found["mismatched_keys"]}
    wrong = {
        "of another shape than config.json says": mismatched,
        "missing": set(found["missing_keys"]) - mismatched,
        "there that the model has no place for": set(found["unexpected_keys"]),
    }
    for how, names in wrong.items():
        if names:
            listed = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise ModelError(f"model folder {path}: weights are {how}: {listed}; copy it again whole, or {advice}")


def action_logprobs(
    model: PreTrainedModel, batch: MicroBatch, temperature: float = 1.0, entropy_gradient: bool = False
):
    """Log-probs of the action tokens and the entropy at each, as SGLang counts them: of the tempered distribution.

    Returns ([n] float32 nats with gradient, [n] float32 nats; the entropy has a gradient only if that is asked for).
    """
    layers, whole = model.get_decoder(), type(model).forward
    inputs = {"input_ids": batch.tokens, "position_ids": batch.positions, "use_cache": False}
    if model.config._attn_implementation == attention.NAME:
        inputs |= {name: inputs[name].view(1, -1) for name in ("input_ids", "position_ids")}
        inputs |= attention.borders(batch.lengths, batch.tokens.device)

    def of_all(**_):
        outputs, head = _without_head(model, inputs), model.get_output_embeddings()
        inside = {id(parameter) for parameter in (*layers.parameters(), head.weight)}
        others = [parameter for parameter in model.parameters() if id(parameter) not in inside]
        hidden = outputs.last_hidden_state.flatten(0, 1).index_select(0, batch.sources)
        outputs = replace(outputs, last_hidden_state=None)

        def logits_of(hidden: torch.Tensor) -> torch.Tensor:
            # What a model does after its layers is its own affair: a head, and then perhaps a scale or a soft cap.
            with _replaced(layers, lambda *_, **__: replace(outputs, last_hidden_state=hidden[None])):
                return whole(model, **inputs).logits.squeeze(0)

        return logprobs_of(logits_of, head, others, hidden, batch.targets, temperature, entropy_gradient)

    # One forward of the outermost unit: its parameters are whole in it, and again in the backward pass of its result.
    with _replaced(model, of_all):
        return model(**inputs)


def recompute_layers(model: PreTrainedModel) -> None:
    """Keep nothing but the input of each layer for the backward pass, which computes the layer once more."""
    for layer in layers_of(model):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


def layers_of(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The decoder layers, sharded or not: a sharded one's class derives from the model's own."""
    names = set(model._no_split_modules or ())
    named = [module for module in model.modules() if names & {kind.__name__ for kind in type(module).__mro__}]
    inner = {part for module in named for part in module.modules() if part is not module}  # such as a layer's mixer
    return [module for module in named if module not in inner]


def _without_head(model: PreTrainedModel, inputs: dict[str, Any]):
    """What the model's layers return, called as the model itself calls them; its head gets nothing to do."""
    layers, found = model.get_decoder(), []
    refusal = ModelError(f"{type(model).__name__} has no layers apart from its head; train another kind of model")
    compute = layers.forward

    def keep(*arguments, **options):
        found.append(compute(*arguments, **options))
        if not hasattr(found[0], "last_hidden_state"):  # what Transformers takes for its layers is not them
            raise refusal
        return replace(found[0], last_hidden_state=found[0].last_hidden_state[:, :0])

    with _replaced(layers, keep):
        type(model).forward(model, **inputs)
    if not found:
        raise refusal
    return found[0]


@contextmanager
def _replaced(module: torch.nn.Module, forward: Callable):
    """`module` is computed by `forward` for the time being; its hooks stay, and with them FSDP's."""
    module.forward = forward
    try:
        yield
    finally:
        module.__dict__.pop("forward", None)
