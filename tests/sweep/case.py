"""One run of the sweep, and what all of them have in common.

lengths of replies   lognormal, sigma = 1, median MEDIAN tokens; a token takes TOKEN_S
engines              ENGINES, each of SLOTS replies at once; new weights take LOAD_S
an update            BATCH entries, UPDATE_S of the trainer
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

MEDIAN, LONGEST, TOKEN_S = 60, 1500, 0.018
ENGINES, SLOTS, LOAD_S = 2, 10, 0.45
BATCH, UPDATES, UPDATE_S = 16, 40, 1.35
FEW, PATIENCE_S = 4, 4 * MEDIAN * TOKEN_S  # of the proactive filter: one reply in twelve takes longer
PROMPTS = 256


@dataclass(frozen=True)
class Case:
    """redundancy: B'/B. policy: what a publication does to running replies; in_turns: in one engine after the other."""

    max_staleness: int
    redundancy: float = 1.0
    policy: str = "drain"
    proactive: str | None = None
    in_turns: bool = False
    seed: int = 1

    @property
    def name(self) -> str:
        turns = "turns" if self.in_turns else "once"
        parts = (self.max_staleness, round(100 * self.redundancy), self.policy, self.proactive or "none", turns)
        return "-".join(map(str, (*parts, self.seed)))

    @property
    def buffers(self) -> dict[str, Any]:
        """The run's [buffers]. An entry that is retried again and again is no failure here."""
        values = {"max_staleness": self.max_staleness, "batch_size": BATCH, "max_attempts": 1000}
        values |= {"buffer_capacity": round(self.redundancy * BATCH), "max_trajectory_bytes": 1 << 16}
        if self.proactive:
            values |= {"proactive": self.proactive, "proactive_threshold": FEW, "proactive_patience_s": PATIENCE_S}
        return values

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of the replies, in the order in which they are begun."""
        normal = np.random.default_rng(self.seed).standard_normal(20 * BATCH * UPDATES)
        return np.clip(np.rint(MEDIAN * np.exp(normal)), 1, LONGEST).astype(int).tolist()


@dataclass(frozen=True)
class Outcome:
    """seconds: from the first reply to the last update. trained, begun: tokens of replies."""

    seconds: float
    trained: list[int]
    begun: list[int]

    @property
    def idle(self) -> float:
        """Share of the time in which the trainer had nothing to do."""
        return 1 - UPDATES * UPDATE_S / self.seconds
