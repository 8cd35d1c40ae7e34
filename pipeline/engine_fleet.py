"""All engines of a run, kept at the version they should serve; nothing is routed to one that has not proved it.

    follow(weights), every pass, one engine after the other, those that failed last:
        serves them, by its own word of at most 2 s ago, and is ready in the ledger ──▶ nothing to do
        else load, verify by label and probe ──▶ register_engine(version) ──▶ workers reserve at this version
        fails ──▶ mark_engine(failed, why), again after 0.5, 1, 2 … 10 s

An engine keeps serving (and admitting at) its old version while the others load. One that was started again by its
supervisor serves its base weights; its label says so within 2 s, and every reply tells the workers.
"""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.coordinator import Coordinator
from pipeline.engines import Engine, EngineFailed
from pipeline.ledger_types import Weights
from pipeline.weights import BadWeights, Label, verify_files

CHECK_S = 2.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
READY = "ready"

log = logging.getLogger(__name__)


@dataclass
class Member:
    """One engine; serves: the label that it has proved; times are of the monotonic clock."""

    name: str
    engine: Engine
    serves: Label | None = None
    checked: float = 0.0
    failures: int = 0
    retry_at: float = 0.0
    problem: str = ""


class EngineFleet:
    """The engines at `urls`, named engine-0, engine-1, … in this order."""

    def __init__(
        self,
        coordinator: Coordinator,
        urls: list[str],
        folder: Path,
        load_timeout_s: float,
        tolerance: float | None = None,
    ):
        self._coordinator, self._folder = coordinator, folder
        self._load_timeout_s, self._tolerance = load_timeout_s, tolerance
        self._verified: Label | None = None  # of the weights whose files were compared with their manifest
        self.members = [Member(f"engine-{number}", Engine(url)) for number, url in enumerate(urls)]

    def introduce(self) -> None:
        """Tell the ledger which engines there are; one that moved to another address must prove itself first."""
        known = {engine.name: engine for engine in self._coordinator.engines()}
        for name in known.keys() - {member.name for member in self.members}:
            self._coordinator.remove_engine(name)
        for member in self.members:
            if member.name not in known or known[member.name].url != member.engine.url:
                self._coordinator.mark_engine(member.name, "starting", "not verified yet", member.engine.url)

    def follow(self, weights: Weights) -> bool:
        """One pass; True once every engine that works, and at least one, serves `weights`."""
        states = {engine.name: engine.state for engine in self._coordinator.engines()}
        for member in sorted(self.members, key=lambda member: member.failures):
            if time.monotonic() >= member.retry_at:
                self._bring(member, weights, states.get(member.name))
        working = [member for member in self.members if not member.problem]
        return bool(working) and all(member.serves and member.serves.version == weights.version for member in working)

    @property
    def versions(self) -> set[int]:
        """Versions that engines serve."""
        return {member.serves.version for member in self.members if member.serves}

    @property
    def problems(self) -> list[str]:
        """What is wrong, one sentence for each engine that is not routed to."""
        return [f"{member.name}: {member.problem}" for member in self.members if member.problem]

    def __str__(self) -> str:
        """What each engine serves, such as "engine-0 v12, engine-1 -"."""
        return ", ".join(f"{m.name} {f'v{m.serves.version}' if m.serves else '-'}" for m in self.members)

    def _bring(self, member: Member, weights: Weights, state: str | None) -> None:
        now = time.monotonic()
        label = weights.label(self._coordinator.run)
        settled = member.serves == label and state == READY
        if settled and now - member.checked < CHECK_S:
            return
        try:
            if settled and member.engine.label() == str(label):
                member.checked = now
                return
            if member.serves is None or settled:  # nobody knows what it serves: until proved, nothing is routed to it
                self._mark(member, "loading", f"version {weights.version}")
            if label != self._verified:  # once a version, not once an engine: hashing takes a second for every GB
                verify_files(self._folder / weights.path)
                self._verified = label
            # Engine.bring's promise: from here on `serves` is what was proved, or nothing
            manifest = member.engine.bring(
                self._folder / weights.path, self._coordinator.run, self._load_timeout_s, self._tolerance
            )
            if manifest.label(self._coordinator.run) != label:
                raise BadWeights(
                    f"{self._folder / weights.path} holds {manifest.label(self._coordinator.run)}, but {label} was "
                    "published: the folder was replaced"
                )
        except (EngineFailed, BadWeights) as error:
            self._fail(member, error)
            return
        self._coordinator.register_engine(member.name, weights.version, member.engine.url)
        log.info("%s serves version %d (%.2f s)", member.name, weights.version, time.monotonic() - now)
        member.serves, member.checked = label, time.monotonic()
        member.failures, member.retry_at, member.problem = 0, 0.0, ""

    def _fail(self, member: Member, error: Exception) -> None:
        pause = min(FIRST_PAUSE_S * 2**member.failures, LONGEST_PAUSE_S)
        member.serves, member.failures, member.problem = None, member.failures + 1, str(error)
        member.retry_at = time.monotonic() + pause
        log.warning("%s failed, next attempt in %g s: %s", member.name, pause, error)
        self._mark(member, "failed", str(error))

    def _mark(self, member: Member, state: str, reason: str) -> None:
        self._coordinator.mark_engine(member.name, state, reason, member.engine.url)
