"""The policy: any causal language model of Hugging Face, by path, sharded with FSDP2.

    MicroBatch ─▶ embeddings ─▶ layers (each fully_shard-ed) ─▶ hidden [rows, width, H]
                                                                   │ only the cells that predict an action token
                                                                   ▼
                                                    lm_head ─▶ logits [n, V] ─▶ log_softmax(logits / temperature)

Packed rows: no attention mask is given, only positions that restart with every trajectory. transformers derives from
them a causal, block-diagonal mask for whatever attention the model uses (sdpa here; sliding windows included). A model
that does not restart with the positions (recurrent or linear attention) is recognised when it is loaded, see
`shares_rows`; its rows then hold one trajectory each, which is right for every causal model.
"""

from pathlib import Path

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from pipeline.errors import HeadraceError
from trainer.packing import MicroBatch
from trainer.ranks import Ranks

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
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers, safetensors and json each raise their own kinds
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"model folder {path} cannot be loaded ({reason}); copy it again whole, or {advice}"
        ) from error
    # No dropout: the ratio to the policy that sampled must be the only thing that varies.
    return model.eval()


def shard(model: PreTrainedModel, ranks: Ranks, dtype: str) -> PreTrainedModel:
    """Shard over the ranks: float32 master weights and reductions, computation in `dtype`.

    Each decoder layer is one unit. Embeddings, final norm and head are the root unit, so tied embeddings stay one
    parameter. Gradients are *summed* over ranks: the loss divides by the tokens of all of them already.
    """
    model.to(ranks.device)
    policy = MixedPrecisionPolicy(param_dtype=None if dtype == "float32" else DTYPES[dtype], reduce_dtype=torch.float32)
    layers = [m for m in model.modules() if type(m).__name__ in (model._no_split_modules or ())]
    for module in [*layers, model]:
        fully_shard(module, mesh=ranks.mesh, mp_policy=policy)
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    return model


def action_logits(model: PreTrainedModel, batch: MicroBatch) -> torch.Tensor:
    """[n, V]: the head is applied to the cells that predict an action token, and to no other."""

    def select(_module, arguments):
        hidden = arguments[0]
        return (hidden.reshape(-1, hidden.shape[-1]).index_select(0, batch.sources),)

    hook = model.get_output_embeddings().register_forward_pre_hook(select)
    try:
        return model(input_ids=batch.tokens, position_ids=batch.positions, use_cache=False).logits
    finally:
        hook.remove()


def action_logprobs(
    model: PreTrainedModel, batch: MicroBatch, temperature: float = 1.0, entropy_gradient: bool = False
):
    """Log-probs of the action tokens and the entropy at each, as SGLang counts them: of the tempered distribution.

    Returns ([n] float32 nats with gradient, [n] float32 nats; the entropy has a gradient only if that is asked for: it
    keeps two more [n, V]).
    """
    logprobs = torch.log_softmax(action_logits(model, batch).float() / temperature, dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, batch.targets[:, None]).squeeze(-1), entropy


@torch.no_grad()
def shares_rows(model: PreTrainedModel, device: torch.device) -> bool:
    """Whether two trajectories in one row are computed as if each were alone; measured, once, on eight tokens."""
    ids = torch.arange(8, device=device) % model.config.get_text_config().vocab_size
    positions = torch.arange(4, device=device).repeat(2)

    def second(tokens, positions):
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        return logits.reshape(8, -1)[4:].float()

    alone, together = (second(ids.view(shape), positions.view(shape)) for shape in ((2, 4), (1, 8)))
    return bool((alone - together).abs().max() <= 0.02 * alone.std())
