"""Settings that are each fine and together are not. Found before anything starts, all at once."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.config import Config, Engines, Trainer

WIDEST = 8  # policy events between two visits of a prompt


def impossible(config: "Config") -> Iterator[str]:
    """Settings that are each fine and together are not, one sentence with the way out for each."""
    buffers, data, engines, trainer = config.buffers, config.data, config.engines, config.trainer
    if buffers.max_staleness < config.publish.every - 1:
        yield (
            f"buffers.max_staleness = {buffers.max_staleness} is below publish.every - 1 = {config.publish.every - 1}: "
            "the run could never fill its second buffer; raise max_staleness or publish more often"
        )
    capacity = buffers.buffer_capacity or buffers.batch_size
    launch = buffers.group_launch or buffers.group_size
    if capacity < buffers.batch_size:
        yield f"buffers.buffer_capacity = {capacity} is below batch_size = {buffers.batch_size}; raise it"
    if launch < buffers.group_size:
        yield f"buffers.group_launch = {launch} is below group_size = {buffers.group_size}; raise it"
    needed = capacity * launch * buffers.max_trajectory_bytes
    if buffers.byte_budget < needed:
        yield (
            f"buffers.byte_budget = {buffers.byte_budget} cannot hold {capacity} × {launch} trajectories of "
            f"max_trajectory_bytes = {buffers.max_trajectory_bytes}; give it at least {needed}"
        )
    if config.model.path is None and config.model.tiny is None:
        yield "no model: set model.path to a Hugging Face folder, or add a [model.tiny] table"
    if config.model.path is not None and config.model.tiny is not None:
        yield "two models: model.path and [model.tiny]; remove one"
    if config.model.tiny is not None and config.model.tiny.hidden % config.model.tiny.heads:
        yield f"model.tiny.hidden = {config.model.tiny.hidden} is not a multiple of heads = {config.model.tiny.heads}"
    for name, problems in {"data": data, "eval.data": config.eval.data}.items():
        if problems is not None and bool(problems.path) == bool(problems.tasks):
            yield f"{name}: set exactly one of {name}.path (a JSONL file) and {name}.tasks (of reasoning-gym)"
    if config.rollout.max_tokens >= config.rollout.context_length:
        yield (
            f"rollout.max_tokens = {config.rollout.max_tokens} leaves no room for a prompt in "
            f"context_length = {config.rollout.context_length}"
        )
    if trainer.token_budget < config.rollout.context_length:
        yield (
            f"trainer.token_budget = {trainer.token_budget} cannot hold one trajectory of "
            f"rollout.context_length = {config.rollout.context_length} tokens"
        )
    if trainer.minibatches > buffers.batch_size:
        yield f"trainer.minibatches = {trainer.minibatches} is above buffers.batch_size = {buffers.batch_size}"
    if not engines.urls and engines.count == 0:
        yield "no engine: set engines.count to at least 1, or engines.urls"
    yield from _impossible_gpus(engines, trainer)


def unwise(config: "Config") -> Iterator[str]:
    """Settings that work, and that nobody wants."""
    event = config.buffers.batch_size * config.publish.every
    if config.advantage.sampler == "uncertainty" and config.data.size > WIDEST * event:
        yield (
            f"data.size = {config.data.size}: a prompt is visited every {config.data.size / event:.0f} policy events, "
            f"when its evidence has faded to {config.advantage.rho ** (config.data.size / event):.1g}; at most "
            f"{WIDEST * event} problems keep values useful (a file with fewer lines is fine)"
        )


def _impossible_gpus(engines: "Engines", trainer: "Trainer") -> Iterator[str]:
    if both := sorted(set(engines.gpus) & set(trainer.gpus)):
        yield f"GPUs {both} are given to both engines and trainer; give each its own"
    for name, gpus in {"engines": engines.gpus, "trainer": trainer.gpus}.items():
        if len(set(gpus)) < len(gpus):
            yield f"{name}.gpus = {gpus} names a GPU twice"
    if engines.device == "cuda" and not engines.urls and len(engines.gpus) != engines.count * engines.tp:
        yield (
            f"engines.gpus lists {len(engines.gpus)} GPUs, but engines.count × engines.tp = "
            f"{engines.count * engines.tp} are needed"
        )
    if engines.device == "cpu" and engines.gpus:
        yield f'engines.gpus = {engines.gpus}, but engines.device = "cpu"; set it to "cuda"'
    if trainer.gpus and len(trainer.gpus) != trainer.ranks:
        yield f"trainer.gpus lists {len(trainer.gpus)} GPUs for trainer.ranks = {trainer.ranks}"
