"""The batch of one update, and all of it that the policy does not decide: rewards, advantages, what it was like.

    trajectories ──┬── reward + overlong penalty ┐
                   ├── value, entry              ├──estimate──▶ Ã, centred over the whole update
                   └── L, action tokens ─────────┘

L counts what the loss uses. With loss.rejection the policy has a say in that, and Ã waits for it: trainer/update.py.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advantage import BadInput, estimate
from advantage.metrics import actor_center, brier, length_correlation, measure_mismatch, reliability
from advantage.overlong import overlong
from pipeline.config import Config
from pipeline.errors import HeadraceError
from pipeline.trajectory import Trajectory
from trainer.packing import MicroBatch


class TrainingFailed(HeadraceError):
    """Training cannot go on; what was trained so far is in the newest checkpoint."""

    code = "TRAINING"


@dataclass(frozen=True)
class Prepared:
    """The batch of one update, and all of it that the policy does not decide.

    counts       [n] action tokens of each trajectory
    advantages   [n] float64; None: the update must first find which of these tokens its loss uses
    minibatches  for each optimizer step, this rank's micro-batches
    """

    trajectories: list[Trajectory]
    counts: np.ndarray
    advantages: np.ndarray | None
    minibatches: list[list[MicroBatch]]


def advantages_of(trajectories: Sequence[Trajectory], counts: np.ndarray, config: Config) -> np.ndarray:
    """[n] float64: one advantage a trajectory, over the whole batch of the update; counts: [n] action tokens.

    Raises TrainingFailed for rewards that the algorithm makes no numbers of.
    """
    algorithm = config.advantage.algorithm
    try:
        return estimate(
            algorithm,
            np.array([t.reward for t in trajectories]) + overlong_penalties(trajectories, config),
            values=[t.value for t in trajectories],
            action_tokens=counts,
            groups=[t.entry for t in trajectories],
            normalization=config.advantage.normalization,
        )
    except BadInput as error:
        raise TrainingFailed(
            f"advantage.algorithm = {algorithm!r} cannot use this batch: {error}. The run has no other one for this "
            "update: see to the environment's rewards and the settings of [advantage], and begin a new run"
        ) from error


def overlong_penalties(trajectories: Sequence[Trajectory], config: Config) -> np.ndarray:
    """[n] float64, at most 0: what is added to the rewards of trajectories near rollout.context_length."""
    settings = config.advantage
    lengths = [len(t.tokens) for t in trajectories]
    return overlong(lengths, config.rollout.context_length, settings.overlong_buffer, settings.overlong_penalty)


def describe(
    trajectories: Sequence[Trajectory], counts: np.ndarray, advantages: np.ndarray, config: Config, version: int
) -> dict:
    """What the batch was like: rewards, lengths, staleness in updates, calibration of the values.

    counts: [n] action tokens that the loss used. The reward is the environment's own, without the overlong penalty.
    """
    rewards = np.array([t.reward for t in trajectories])
    values, outcomes = [t.value for t in trajectories], [t.outcome for t in trajectories]
    lengths = [len(t.tokens) for t in trajectories]
    staleness = Counter(version - t.version for t in trajectories)
    penalties = {}
    if config.advantage.overlong_buffer:
        taken = overlong_penalties(trajectories, config)
        penalties = {"overlong_fraction": float((taken < 0).mean()), "overlong_penalty": float(taken.mean())}
    return penalties | {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "success": float(np.mean(outcomes)),
        "advantage_center": actor_center(advantages, counts),
        "measure_mismatch": measure_mismatch(advantages, counts),
        "length_correlation": length_correlation(advantages, counts),
        "brier": brier(values, outcomes),
        "calibration": reliability(values, outcomes).round(6).tolist(),
        "staleness": {str(age): staleness[age] for age in sorted(staleness)},
        "trajectories": len(trajectories),
        "action_tokens": int(counts.sum()),
        "tokens": sum(lengths),
        "mean_length": float(np.mean(lengths)),
        # a turn that engines changed in has several segments; who counts turns has them in the metrics
        "turns": float(np.mean([t.metrics.get("turns", len(t.segments)) for t in trajectories])),
        "environment": _means(trajectories),
    }


def _means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What the environment counted, a trajectory: tool_calls, and names of its own."""
    totals = Counter()
    for t in trajectories:
        totals.update({name: number for name, number in t.metrics.items() if name != "turns"})
    return {name: total / len(trajectories) for name, total in sorted(totals.items())}
