"""What an episode has come to: its tokens, which of them are actions, and how the environment judges it.

    tokens     0 0 0 0      1 1 1 1             0 0 0 0      1 1 1 1                  loss_mask
               prompt       reply               observation  reply ── judge(turn) ─▶ reward, outcome, metrics

Without a reward at its end it is the last one that was given, else 0; without an outcome, that is the reward.
"""

import math
from collections import Counter

import numpy as np

from pipeline.ledger_types import Reservation
from pipeline.trajectory import Segment, Trajectory
from pipeline.trajectory_check import LARGEST_REWARD
from workers.engine import Reply
from workers.environments import Turn


class Transcript:
    """tokens: the whole conversation's. metrics: numbers by name, summed over the turns."""

    def __init__(self):
        self.tokens: list[int] = []
        self.segments: list[Segment] = []
        self.logprobs: list[tuple[int, np.ndarray]] = []  # where each reply begins, and its log-probs
        self.metrics: Counter[str] = Counter()
        self.reward: float | None = None
        self.outcome: float | None = None

    def add(self, reply: Reply) -> None:
        start = len(self.tokens)
        self.tokens += reply.tokens
        self.logprobs.append((start, reply.logprobs))
        self.segments += [segment._replace(start=start + segment.start) for segment in reply.segments]
        self.metrics["turns"] += 1

    def judge(self, turn: Turn) -> None:
        """What the environment says of the last reply. Raises ValueError for a reward that no trainer could use."""
        metrics = dict(turn.metrics)
        self.outcome = metrics.pop("outcome", self.outcome)
        self.metrics.update(metrics)
        self.reward = turn.reward if turn.reward is not None else self.reward
        if turn.done and self.reward is None:
            raise ValueError("done without a reward; give Turn(…, reward=…, done=True)")
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(f"expected a finite reward, found {self.reward}")
        if self.reward is not None and abs(self.reward) > LARGEST_REWARD:
            limit = f"{LARGEST_REWARD:g}"
            raise ValueError(f"expected a reward of at most {limit} either way, found {self.reward}; scale it")
        outcome = self.reward if self.outcome is None else self.outcome
        if outcome is not None and not 0 <= outcome <= 1:
            raise ValueError(
                f"expected an outcome in [0, 1], found {outcome}; a reward outside of it needs "
                'Turn(metrics={"outcome": …}) besides'
            )

    def trajectory(self, reservation: Reservation, finish_reason: str) -> Trajectory:
        r, reward = reservation, 0.0 if self.reward is None else float(self.reward)
        loss_mask = np.zeros(len(self.tokens), dtype=np.uint8)
        rollout_logprobs = np.zeros(len(self.tokens), dtype=np.float32)
        for start, logprobs in self.logprobs:
            loss_mask[start : start + len(logprobs)] = 1
            rollout_logprobs[start : start + len(logprobs)] = logprobs
        return Trajectory(
            prompt_id=r.prompt,
            entry=r.entry,
            version=r.version,
            event=r.event,
            value=r.value,
            outcome=reward if self.outcome is None else float(self.outcome),
            reward=reward,
            finish_reason=finish_reason,
            metrics={"tool_calls": 0.0} | {name: float(number) for name, number in self.metrics.items()},
            tokens=np.array(self.tokens, dtype=np.int32),
            loss_mask=loss_mask,
            rollout_logprobs=rollout_logprobs,
            segments=self.segments,
        )
