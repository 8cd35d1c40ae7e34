"""What an audit found: for every invariant how much was checked, and what broke it.

expect(name, true, otherwise, …) ─▶ checked[name] + 1, and a Violation unless true ─▶ audit_report.py
"""

from collections import Counter
from dataclasses import dataclass, field

# protocol.md's, and of the trainer: each update was made from the batch that the ledger handed out, and (evidence
# "receipt") credited once, in order, before its policy was out
INVARIANTS = (
    "bound",
    "capacity",
    "soundness",
    "conservation",
    "once",
    "payload",
    "order",
    "monotone",
    "liveness",
    "trained",
    "credited",
)


@dataclass(frozen=True)
class Violation:
    what: str
    entry: str = ""
    buffer: int | None = None
    event: str = ""  # its id


@dataclass
class Findings:
    checked: Counter = field(default_factory=Counter)
    violations: dict[str, list[Violation]] = field(default_factory=lambda: {name: [] for name in INVARIANTS})
    unchecked: dict[str, str] = field(default_factory=dict)  # invariant -> what of it could not be checked, and why
    notes: list[str] = field(default_factory=list)  # lawful, and worth knowing

    @property
    def clean(self) -> bool:
        return not any(self.violations.values())

    def expect(
        self, name: str, true: bool, otherwise: str, entry: str = "", buffer: int | None = None, event: str = ""
    ) -> bool:
        """Count one check; returns `true`."""
        self.checked[name] += 1
        if not true:
            self.violations[name].append(Violation(otherwise, entry, buffer, event))
        return true
