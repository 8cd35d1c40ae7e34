"""The rules of one run's buffers: what they are by default, which are impossible, and how hr:{run} keeps them.

[buffers] … ─▶ Settings.read ─▶ .impossible()  refused before anything is written
                             └▶ .stored()      a field each, for readers; RULES of them in one, for the scripts
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pipeline.errors import ConfigError
from pipeline.trajectory_check import LARGEST_INT

# metric of a trajectory that dynamic sampling compares within its group
FILTER_METRICS = {
    "score": lambda t: t.metrics.get("score", t.reward),
    "acc": lambda t: t.metrics.get("acc", t.outcome),
    "seq_reward": lambda t: t.reward,
    "seq_final_reward": lambda t: t.reward,
}
AT_LEAST_ONE = (
    "batch_size",
    "group_size",
    "publish_every",
    "max_trajectory_bytes",
    "max_attempts",
    "max_lost",
    "max_consecutive_failures",
    "max_consecutive_filtered",
    "proactive_threshold",
)
# the settings that most transitions need: together in the field `rules` of hr:{run}, see lua/_run.lua
RULES = (
    "max_staleness publish_every batch_size buffer_capacity group_size group_launch rho byte_budget "
    "max_trajectory_bytes lease_ms sampler filter_metric evidence"
)


@dataclass(frozen=True)
class Settings:
    """The rules of one run's buffers; names as in the run's TOML file (protocol.md's in brackets)."""

    batch_size: int  # [B] entries that one update takes
    max_staleness: int = 1  # [η]
    buffer_capacity: int | None = None  # [B'] default B
    group_size: int = 1  # [N]
    group_launch: int | None = None  # [N'] default N
    publish_every: int = 1  # [P]
    rho: float = 0.875
    sampler: str = "uncertainty"
    evidence: str = "event"  # when an outcome counts: at its Occupy, or at the trainer's receipt, once it is trained
    byte_budget: int = 0  # bytes stored or in flight; 0: no limit
    max_trajectory_bytes: int = 1 << 20
    lease_s: float = 15.0
    max_age_s: float = 600.0
    max_attempts: int = 3
    max_lost: int = 10
    max_consecutive_failures: int = 100
    filter_metric: str | None = None  # groups whose members all have the same one are filtered
    proactive: str | None = None  # what is done with the few that the trainer waits for
    proactive_threshold: int = 4  # how many count as few
    proactive_patience_s: float = 30.0
    max_consecutive_filtered: int = 1000

    @classmethod
    def read(cls, given: Any) -> "Settings":
        """From a mapping or a pydantic model. Raises ConfigError for settings that are unknown or impossible."""
        values = dict(given if isinstance(given, Mapping) else given.model_dump())
        unknown = values.keys() - {f.name for f in fields(cls)}
        if unknown:
            names = ", ".join(sorted(map(str, unknown)))
            raise ConfigError(f"expected the ledger's settings, found also {names}: remove them")
        if "batch_size" not in values:
            raise ConfigError("batch_size is missing: say how many entries one update takes")
        if values.get("buffer_capacity") is None:
            values["buffer_capacity"] = values["batch_size"]
        if values.get("group_launch") is None:
            values["group_launch"] = values.get("group_size", 1)
        settings = cls(**values)
        if problem := settings.impossible():
            raise ConfigError(problem)
        return settings

    def impossible(self) -> str | None:
        """What is wrong with them, in a sentence."""
        for field in fields(self):
            value, kind = getattr(self, field.name), int | float if field.type is float else field.type
            if isinstance(value, bool) or not isinstance(value, kind):
                return f"{field.name}: expected {getattr(kind, '__name__', kind)}, found {value!r}"
            if isinstance(value, int | float) and not abs(value) < LARGEST_INT:
                return f"{field.name}: expected a number below 2**53, found {value}"
        for name in AT_LEAST_ONE:
            if getattr(self, name) < 1:
                return f"{name}: expected at least 1, found {getattr(self, name)}"
        if self.max_staleness < 0 or self.byte_budget < 0:
            return "max_staleness and byte_budget: expected at least 0"
        if self.publish_every - 1 > self.max_staleness:
            return (
                f"max_staleness {self.max_staleness} < publish_every - 1 = {self.publish_every - 1}: "
                "the run could never move; raise max_staleness or publish more often"
            )
        if self.buffer_capacity < self.batch_size:
            return f"buffer_capacity {self.buffer_capacity} < batch_size {self.batch_size}: raise it"
        if self.group_launch < self.group_size:
            return f"group_launch {self.group_launch} < group_size {self.group_size}: raise it"
        least = self.buffer_capacity * self.group_launch * self.max_trajectory_bytes
        if 0 < self.byte_budget < least:
            return f"byte_budget {self.byte_budget} is less than one buffer needs: expected at least {least} bytes"
        if not 0 < self.rho <= 1:
            return f"rho: expected a number in (0, 1], found {self.rho}"
        if self.sampler not in ("uncertainty", "shuffle"):
            return f'sampler: expected "uncertainty" or "shuffle", found {self.sampler!r}'
        if self.evidence not in ("event", "receipt"):
            return f'evidence: expected "event" or "receipt", found {self.evidence!r}'
        if self.filter_metric not in (None, *FILTER_METRICS):
            return f"filter_metric: expected one of {', '.join(FILTER_METRICS)}, found {self.filter_metric!r}"
        if self.proactive not in (None, "retry", "truncate"):
            return f'proactive: expected "retry" or "truncate", found {self.proactive!r}'
        for name in ("lease_s", "max_age_s", "proactive_patience_s"):
            if getattr(self, name) < 0.001:
                return f"{name}: expected a millisecond at least, found {getattr(self, name)}"
        return None

    def stored(self) -> dict[str, Any]:
        """As fields of hr:{run}; times in ms."""
        values = asdict(self)
        values["lease_ms"] = round(values.pop("lease_s") * 1000)
        values["max_age_ms"] = round(values.pop("max_age_s") * 1000)
        values["proactive_patience_ms"] = round(values.pop("proactive_patience_s") * 1000)
        return {name: "" if value is None else value for name, value in values.items()}
