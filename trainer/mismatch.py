"""Whether trainer and engines mean the same policy: an alarm that is told once when it begins, once when it ends.

    mismatch_kl ─▶ at least trainer.mismatch_alarm?     no no YES YES YES no       metric mismatch_alarm: 0 0 1 1 1 0
                                                              └─▶ log    └─▶ log

What it looks like from outside says where to look: one engine far off is that engine, all of them alike are a setting,
and a distance that grows with the age of the trajectories is the policy that has moved on.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch

from pipeline.trajectory import Trajectory
from trainer.divergence import k3
from trainer.packing import action_places
from trainer.ranks import Ranks

log = logging.getLogger(__name__)

ADVICE = (
    "one engine far off: its weights, version or device; all alike: rollout.temperature, sampler settings in "
    "engines.args, model.dtype against the engines', a quantized engine; more with age: the policy moves fast, go "
    "on with a lower optimizer.lr or buffers.max_staleness: headrace fork RUN optimizer.lr=…"
)


class MismatchAlarm:
    """Kept by every rank alike, told by the first. limit: nats a token, of KL(engine ‖ trainer)."""

    def __init__(self, limit: float, ranks: Ranks):
        self._limit, self._ranks, self.on = limit, ranks, False

    def look(
        self,
        version: int,
        mismatch_kl: float,
        trajectories: Sequence[Trajectory],
        logprobs: Callable[[Sequence[Trajectory]], list[np.ndarray]],
    ) -> int:
        """1 if the mismatch of update `version` is one to be told, else 0.

        logprobs: of the policy, asked for when the alarm begins. All ranks call it.
        """
        before, self.on = self.on, mismatch_kl >= self._limit
        if self.on and not before:
            found = by_engine_and_age(trajectories, logprobs(trajectories), version)
            self._tell(
                f"update {version}: trainer and engines disagree: mismatch_kl is {mismatch_kl:.3g} nats a token, "
                f"trainer.mismatch_alarm {self._limit:g}. With the policy after the update, {found}. Where to look: "
                f"{ADVICE}"
            )
        if before and not self.on:
            self._tell(f"update {version}: trainer and engines agree again: mismatch_kl is {mismatch_kl:.3g}")
        return int(self.on)

    def _tell(self, sentence: str) -> None:
        if self._ranks.first:
            log.warning("%s", sentence)


def by_engine_and_age(trajectories: Sequence[Trajectory], logprobs: Sequence[np.ndarray], version: int) -> str:
    """Mean k3 of the action tokens by the engine that generated them, and by how many updates it was behind."""
    engines, ages = defaultdict(list), defaultdict(list)
    for t, ours in zip(trajectories, logprobs, strict=True):
        apart, actions = np.zeros(len(t.tokens)), action_places(t)
        apart[actions] = k3(torch.from_numpy(ours.astype(np.float64) - t.rollout_logprobs[actions]))
        for s in t.segments:
            part = apart[s.start : s.start + s.length]
            engines[s.engine].append(part)
            ages[version - s.version].append(part)
    return f"by engine: {_means(engines)}; by updates behind: {_means(ages)}"


def _means(parts: dict) -> str:
    return ", ".join(f"{name} {np.concatenate(found).mean():.2g}" for name, found in sorted(parts.items()))
