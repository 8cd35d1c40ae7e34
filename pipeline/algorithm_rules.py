"""What belongs together in an algorithm: advantages, groups, evidence and loss. Part of config_rules.py.

impossible_algorithm ─▶ refused: advantages that are always 0, evidence that no one could credit
unwise_algorithm ─────▶ told: an algorithm by name that is not the published one, values that no one reads
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advantage import BY_GROUP, BY_VALUE, ESTIMATORS

if TYPE_CHECKING:
    from pipeline.config import Config

# algorithm | what makes it the published one, beside its advantages
PUBLISHED = {
    "spo++": {"advantage.evidence": ["event"]},
    "spo": {"advantage.evidence": ["receipt"], "loss.dual_clip": [10.0]},
    "grpo": {"loss.aggregation": ["sequence"]},
    "dapo": {
        "loss.aggregation": ["token"],
        "buffers.filter_metric": ["acc", "score", "seq_reward", "seq_final_reward"],
    },
    "gspo": {"loss.ratio": ["sequence"], "loss.aggregation": ["sequence"]},
    "dr_grpo": {"loss.aggregation": ["constant"]},
}


def reads_values(config: "Config") -> bool:
    """Whether anything asks what a prompt is worth."""
    return config.advantage.algorithm in BY_VALUE or config.advantage.sampler == "uncertainty"


def impossible_algorithm(config: "Config") -> Iterator[str]:
    advantage, length = config.advantage, config.rollout.context_length
    if advantage.algorithm not in ESTIMATORS:
        known = ", ".join(ESTIMATORS)
        yield f"advantage.algorithm = {advantage.algorithm!r} is not known; set it to one of: {known}"
    if advantage.algorithm in BY_GROUP and config.buffers.group_size == 1:
        yield (
            f"advantage.algorithm = {advantage.algorithm!r} compares the trajectories of a group, and those of "
            "buffers.group_size = 1 have no other: every advantage would be 0; raise it (8 is usual)"
        )
    if advantage.evidence == "receipt" and config.buffers.group_size > 1:
        yield (
            'advantage.evidence = "receipt" follows one trajectory a prompt, and buffers.group_size = '
            f'{config.buffers.group_size}; set it to 1, or evidence to "event"'
        )
    if advantage.overlong_buffer >= length:
        yield (
            f"advantage.overlong_buffer = {advantage.overlong_buffer} penalises trajectories of every length up to "
            f"rollout.context_length = {length}; lower it"
        )


def unwise_algorithm(config: "Config") -> Iterator[str]:
    algorithm = config.advantage.algorithm
    for name, published in PUBLISHED.get(algorithm, {}).items():
        section, key = name.split(".")
        if (value := getattr(getattr(config, section), key)) not in published:
            yield (
                f"advantage.algorithm = {algorithm!r} with {name} = {value!r}: as published it has {published[0]!r} "
                "(`headrace init NAME --recipe` writes all of an algorithm's settings)"
            )
    if config.advantage.offline_rollouts and not reads_values(config):
        yield (
            f"advantage.offline_rollouts = {config.advantage.offline_rollouts}: neither {algorithm!r} nor the sampler "
            f"{config.advantage.sampler!r} reads the values that they are made for; 0 spares them"
        )
