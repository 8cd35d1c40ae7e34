"""What SPO's evidence needs of the trainer: how far each update moved the policy on the prompts that it was made from.

    batch v ─▶ each prompt's previous trajectory ─▶ log p ─▶ update v ─▶ log p' ─▶ D = mean |log p' - log p|
                                                                                    └▶ ρ = 2^(-D/0.06), within bounds
    credit v = (prompt, ρ, outcome) of each trajectory ─ledger▶ alpha <- ρ alpha + R,  beta <- ρ beta + 1 - R

arXiv 2509.13232, 3.1. A prompt that a batch has twice is visited twice, one after the other. A trainer that comes back
needs the trajectories as they were, and the credits that a ledger may have lost: both are part of its checkpoint.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from advantage.retention import retention
from pipeline.trajectory import Trajectory
from trainer.batch import Prepared, TrainingFailed
from trainer.update import Updater

Credit = tuple[str, float, float]  # prompt, retention, outcome


class Receipts:
    """Kept by every rank alike. previous: each prompt's last trajectory; credits: (version, its credits) of the last
    max_staleness + 2 updates."""

    def __init__(
        self,
        updater: Updater,
        previous: Iterable[Trajectory] = (),
        credits: Iterable[tuple[int, Sequence[Credit]]] = (),
    ):
        self._updater, self._kept = updater, updater.config.buffers.max_staleness + 2
        self._previous = {t.prompt_id: t for t in previous}
        self._credits = {version: [tuple(credit) for credit in those] for version, those in credits}

    @property
    def previous(self) -> list[Trajectory]:
        return list(self._previous.values())

    @property
    def credits(self) -> list[tuple[int, list[Credit]]]:
        return list(self._credits.items())

    def of(self, version: int) -> list[Credit]:
        """The credits of update `version`, in its batch's order."""
        return self._credits[version]

    def update(self, batch: Prepared, version: int) -> dict[str, float]:
        """Updater.update, and its credits. All ranks call it.

        Adds the metrics `drift` (mean over the trajectories whose prompt was seen before, nats) and `retention` (mean).
        """
        before, seen = [], dict(self._previous)
        for trajectory in batch.trajectories:
            before.append(seen.get(trajectory.prompt_id))
            seen[trajectory.prompt_id] = trajectory
        known = [trajectory for trajectory in before if trajectory is not None]
        old = self._updater.logprobs(known)
        metrics = self._updater.update(batch, version)
        stood = metrics["skipped"] == self._updater.config.trainer.minibatches
        moved = np.zeros(len(known)) if stood else drifts(old, self._updater.logprobs(known))
        if not np.isfinite(moved).all():
            raise TrainingFailed(
                f"update {version}: log-probs of the model are not finite after it; go on from the newest "
                f"checkpoint with a lower optimizer.lr (now {metrics['lr']:g}): "
                f"headrace fork {self._updater.config.run.name} optimizer.lr=…"
            )
        of_known = iter(moved)
        retentions = [retention(0.0 if trajectory is None else next(of_known)) for trajectory in before]
        visits = zip(batch.trajectories, retentions, strict=True)
        self._previous = seen
        self._credits[version] = [(t.prompt_id, kept, t.outcome) for t, kept in visits]
        self._credits = dict(self.credits[-self._kept :])
        drift = float(moved.mean()) if known else 0.0
        return metrics | {"drift": drift, "retention": float(np.mean(retentions))}


def drifts(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> np.ndarray:
    """[n] float64 nats: mean |Δ log p| over the action tokens of each trajectory, 0 if it has none.

    before, after: the log-probs of these tokens, [L] float32 nats each.
    """
    pairs = zip(before, after, strict=True)
    return np.array([np.abs(new.astype(np.float64) - old).sum() / max(len(old), 1) for old, new in pairs])
