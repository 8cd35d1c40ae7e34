"""Settings that were given and that nothing would read: whoever set one expects that it acts, so it is refused.

IGNORED ─▶ ignored(config) ─▶ a sentence for each that differs from its default
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from advantage import BY_GROUP
from pipeline.algorithm_rules import reads_values
from pipeline.environment_rules import BUILT_IN, WITH_TOOL, judges_mathematics

if TYPE_CHECKING:
    from pipeline.config import Config

# settings | when nothing reads them | because …
IGNORED: list[tuple[str, Callable[["Config"], bool], str]] = [
    (
        "eval.every eval.n eval.temperature eval.timeout_s",
        lambda c: c.eval.data is None,
        "no [eval.data] says which problems are held out",
    ),
    ("data.seed", lambda c: c.data.path is not None, "the problems come from data.path"),
    (
        "eval.data.seed",
        lambda c: c.eval.data is not None and c.eval.data.path is not None,
        "the problems come from eval.data.path",
    ),
    ("metrics.host", lambda c: c.metrics.port is None, "metrics.port is not set, and nothing is served"),
    ("redis.port", lambda c: c.redis.url is not None, "redis.url names a server that runs already"),
    (
        "engines.count engines.device engines.gpus engines.tp engines.port engines.python engines.args engines.threads",
        lambda c: bool(c.engines.urls),
        "engines.urls names servers that run already",
    ),
    ("trainer.offload", lambda c: not c.trainer.gpus, "the trainer is on the CPU (trainer.gpus is empty)"),
    ("trainer.rendezvous", lambda c: c.trainer.nodes == 1, "trainer.nodes is 1, and nobody else comes"),
    ("trainer.max_restarts", lambda c: c.trainer.ranks == 1, "one rank runs without torchrun, which restarts ranks"),
    ("trainer.share_gpus", lambda c: not {*c.trainer.gpus} & {*c.engines.gpus}, "engines and trainer share no GPU"),
    ("buffers.filter_metric", lambda c: c.buffers.group_size == 1, "a group of one is never filtered"),
    (
        "buffers.max_consecutive_filtered",
        lambda c: c.buffers.filter_metric is None,
        "buffers.filter_metric does not say what groups are filtered by",
    ),
    (
        "buffers.proactive_threshold buffers.proactive_patience_s",
        lambda c: c.buffers.proactive is None,
        "buffers.proactive does not say what is done with the last few",
    ),
    (
        "advantage.rho",
        lambda c: c.advantage.evidence == "receipt",
        'with advantage.evidence = "receipt" the retention follows from the policy\'s drift',
    ),
    (
        "advantage.rho advantage.mass advantage.values advantage.evidence",
        lambda c: not reads_values(c),
        "neither advantage.algorithm nor advantage.sampler reads a prompt's value",
    ),
    ("advantage.normalization", lambda c: c.advantage.algorithm in BY_GROUP, "the algorithm normalizes within groups"),
    ("advantage.overlong_penalty", lambda c: c.advantage.overlong_buffer == 0, "advantage.overlong_buffer is 0"),
    ("advantage.values", lambda c: c.advantage.offline_rollouts == 0, "advantage.offline_rollouts is 0"),
    (
        "cold_start.rollouts cold_start.temperature cold_start.top_p cold_start.top_k",
        lambda c: c.cold_start is not None and not c.cold_start.teacher,
        "without cold_start.teacher the traces are scripted",
    ),
    (
        "cold_start.max_steps",
        lambda c: c.cold_start is not None and c.cold_start.epochs is not None,
        "cold_start.epochs says how long it goes on",
    ),
    ("loss.importance_cap", lambda c: c.loss.importance == "none", 'loss.importance is "none"'),
    (
        "loss.importance loss.importance_cap loss.rejection",
        lambda c: c.loss.proximal == "rollout",
        "loss.proximal = \"rollout\" puts the engines' log-probs in the place of the trainer's",
    ),
    (
        "loss.rejection_measure loss.rejection_low loss.rejection_high",
        lambda c: c.loss.rejection == "none",
        'loss.rejection is "none"',
    ),
    (
        "optimizer.decay_steps optimizer.min_lr",
        lambda c: c.optimizer.schedule == "constant",
        'optimizer.schedule is "constant"',
    ),
    ("loss.reference loss.reference_decay", lambda c: c.loss.kl == 0, "loss.kl is 0"),
    ("loss.reference_decay", lambda c: c.loss.reference == "initial", 'loss.reference is "initial", which stays'),
    (
        "environment.tool_timeout_s environment.tool_memory_mb environment.tool_output_bytes environment.tool_preload",
        lambda c: c.environment.name in BUILT_IN.keys() - WITH_TOOL,
        "this environment has no tool",
    ),
    (
        "environment.tool_concurrency environment.allow_unconfined",
        lambda c: c.environment.name == "single_turn" and not judges_mathematics(c.environment),
        "this environment has no tool, and compares answers without a process of its own",
    ),
    (
        "environment.tool_timeout_s environment.tool_memory_mb environment.tool_output_bytes "
        "environment.tool_concurrency environment.tool_preload environment.allow_unconfined",
        lambda c: ":" in c.environment.name,
        "an environment of your own reads environment.options alone",
    ),
]


def ignored(config: "Config") -> Iterator[str]:
    """Settings that differ from their default and that nothing would read."""
    for names, unread, why in IGNORED:
        if unread(config):
            for name in names.split():
                section, key = config, name
                while "." in key:
                    first, _, key = key.partition(".")
                    section = getattr(section, first)
                value = getattr(section, key)
                if value != type(section).model_fields[key].default:
                    shown = str(value) if isinstance(value, Path) else value
                    yield f"{name} = {shown!r} does nothing, because {why}; remove it"
