"""What single settings cannot know: which combinations are impossible, or help nobody.

    impossible(config) ─▶ refused with the file, all at once, before anything starts, as is what would do nothing:
                          ignored_settings.py
    unwise(config) ─────▶ said by `headrace validate` and `headrace up`

Each problem is one sentence that names the settings and the way out.
"""

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from pipeline.algorithm_rules import impossible_algorithm, unwise_algorithm
from pipeline.environment_rules import impossible_environment
from pipeline.ledger_settings import Settings
from pipeline.placement_rules import impossible_placement
from pipeline.secrets import password_in_query, without_password

if TYPE_CHECKING:
    from pipeline.config import Config

WIDEST = 8  # policy events between two visits of a prompt


def impossible(config: "Config") -> Iterator[str]:
    """One sentence for each contradiction."""
    buffers, engines, trainer = config.buffers, config.engines, config.trainer
    yield from impossible_algorithm(config)
    yield from _impossible_buffers(config)
    yield from impossible_environment(config)
    yield from _impossible_model_or_data(config)
    yield from _impossible_teacher(config)
    if config.rollout.concurrency < (launch := config.ledger_settings["group_launch"]):
        yield (
            f"rollout.concurrency = {config.rollout.concurrency} is below the {launch} episodes of one entry "
            "(buffers.group_launch); raise it"
        )
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
    yield from _impossible_rejection(config)
    yield from _impossible_schedule(config)
    if not engines.urls and engines.count == 0:
        yield "no engine: set engines.count to at least 1, or engines.urls"
    yield from impossible_placement(engines, trainer)
    url = config.redis.url
    if url and (without_password(url) != url or password_in_query(url)):
        yield (
            "redis.url holds a password, which whoever reads the run's folder would see; leave it out, and give it in "
            "REDIS_PASSWORD, in a file that REDIS_PASSWORD_FILE names, or with the address in REDIS_URL"
        )
    if config.publish.transport == "distributed" and trainer.gpus and engines.device == "cpu" and not engines.urls:
        yield (
            'publish.transport = "distributed": a trainer on GPUs broadcasts over NCCL, which engines on the CPU '
            '(engines.device = "cpu") do not speak; set it to "disk", or engines.device to "cuda"'
        )


def _impossible_buffers(config: "Config") -> Iterator[str]:
    buffers = config.buffers
    rules = {name: value for name, value in config.ledger_settings.items() if name != "digest"}
    if problem := Settings(**rules).impossible():
        yield f"buffers.{problem}"
    if buffers.proactive and buffers.proactive_patience_s >= buffers.max_age_s:
        yield (
            f"buffers.proactive_patience_s = {buffers.proactive_patience_s:g} is not below max_age_s = "
            f"{buffers.max_age_s:g}, after which every entry is given back anyway; lower it"
        )


def _impossible_model_or_data(config: "Config") -> Iterator[str]:
    model = config.model
    given = {"model.path": model.path, "model.gguf": model.gguf, "[model.tiny]": model.tiny}
    models = [name for name, value in given.items() if value is not None]
    if not models:
        yield "no model: set model.path to a Hugging Face folder or model.gguf to a file, or add a [model.tiny] table"
    if len(models) > 1:
        yield f"{'two' if len(models) == 2 else 'three'} models: {' and '.join(models)}; keep one"
    if model.tiny is not None and model.tiny.hidden % model.tiny.heads:
        yield f"model.tiny.hidden = {model.tiny.hidden} is not a multiple of heads = {model.tiny.heads}"
    for name, problems in {"data": config.data, "eval.data": config.eval.data}.items():
        if problems is not None and bool(problems.path) == bool(problems.tasks):
            yield f"{name}: set exactly one of {name}.path (a file or data set) and {name}.tasks (of reasoning-gym)"
        if problems is not None and config.environment.name == "reasoning_gym" and not problems.tasks:
            yield f'environment.name = "reasoning_gym" scores tasks of reasoning-gym alone; set {name}.tasks'


def _impossible_teacher(config: "Config") -> Iterator[str]:
    settings = config.cold_start
    if settings is None or settings.teacher_folder is None:
        return
    if len(settings.teacher) > 1:
        yield f"cold_start.teacher = {settings.teacher}: expected URLs of servers, or one folder of a model"
    if config.engines.urls:
        yield (
            f"cold_start.teacher = {str(settings.teacher_folder)!r} would have to be served here, but engines.urls "
            "names servers that run already; start one for the teacher too, and give its URL"
        )


def _impossible_rejection(config: "Config") -> Iterator[str]:
    loss = config.loss
    low, high = loss.rejection_low, loss.rejection_high
    if loss.rejection != "none" and low is None and high is None:
        yield f"loss.rejection = {loss.rejection!r} without a bound removes nothing; set loss.rejection_high"
    if low is not None and loss.rejection_measure != "k1":
        yield (
            f"loss.rejection_low = {low:g}: {loss.rejection_measure} is never below 0, where trainer and engine agree; "
            'remove it, or set loss.rejection_measure to "k1"'
        )
    for name, wrong in {"low": low is not None and low > 0, "high": high is not None and high < 0}.items():
        if wrong:
            yield (
                f"loss.rejection_{name} = {getattr(loss, f'rejection_{name}'):g} removes the tokens that trainer and "
                "engine agree about, which measure 0; bounds must enclose 0"
            )


def _impossible_schedule(config: "Config") -> Iterator[str]:
    """That it is longer than the run is no contradiction: run.total_steps may be raised when a run goes on."""
    schedule, warm_up, until = config.optimizer.schedule, config.optimizer.warm_up, config.optimizer.decay_steps
    if schedule != "constant" and until is None:
        yield (
            f"optimizer.schedule = {schedule!r} needs optimizer.decay_steps, the updates until the learning rate is at "
            f"its lowest; run.total_steps = {config.run.total_steps} is usual"
        )
    if until is not None and warm_up >= until:
        yield f"optimizer.warm_up = {warm_up} is not below optimizer.decay_steps = {until}; lower the former"


def unwise(config: "Config") -> Iterator[str]:
    """Settings that work, and that nobody wants."""
    yield from unwise_algorithm(config)
    event = config.buffers.batch_size * config.publish.every
    fades = config.advantage.sampler == "uncertainty" and config.advantage.evidence == "event"
    if fades and config.data.size > WIDEST * event:
        yield (
            f"data.size = {config.data.size}: a prompt is visited every {config.data.size / event:.0f} policy events, "
            f"when its evidence has faded to {config.advantage.rho ** (config.data.size / event):.1g}; at most "
            f"{WIDEST * event} problems keep values useful (a file with fewer lines is fine)"
        )
    rollout, loss = config.rollout, config.loss
    if rollout.top_p < 1 or rollout.top_k > 0:
        yield (
            f"rollout.top_p = {rollout.top_p:g}, top_k = {rollout.top_k}: tokens are sampled from a part of the "
            "distribution whose log-probs the loss uses, which biases it; 1 and -1 sample from all of it"
        )
    acting = {name: getattr(loss, name) for name in ("ratio", "clip_low", "clip_high", "dual_clip")}
    changed = [name for name, value in acting.items() if value not in (type(loss).model_fields[name].default, inf)]
    if changed and config.trainer.minibatches == 1 and loss.proximal == "recompute":
        yield (
            f'loss.{", ".join(changed)}: with trainer.minibatches = 1 and loss.proximal = "recompute" the policy '
            'ratio is always 1 and no clip ever acts; raise minibatches, or set proximal to "rollout"'
        )
    if config.optimizer.warm_up >= config.run.total_steps:
        yield (
            f"optimizer.warm_up = {config.optimizer.warm_up} is not below run.total_steps = {config.run.total_steps}: "
            "no update is made at optimizer.lr; lower the former"
        )
    measure = config.advantage.normalization or {"spo++": "token", "reinforce++": "token"}.get(
        config.advantage.algorithm
    )
    if measure == "token" and loss.aggregation == "sequence":
        yield (
            "loss.aggregation = 'sequence': the advantages are centred per token (advantage.normalization), which a "
            "mean over trajectories does not keep at 0; set one of them to the other's measure"
        )
    cold = config.cold_start
    if cold is not None and cold.epochs is None and cold.warm_up >= cold.max_steps:
        yield (
            f"cold_start.warm_up = {cold.warm_up} is not below max_steps = {cold.max_steps}: no step goes on at "
            "cold_start.lr; lower the former"
        )
