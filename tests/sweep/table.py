"""What the sweep has found, as Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from tests.sweep.case import Case, Outcome


@dataclass(frozen=True)
class Row:
    """alone: what the lengths alone allow; None: not simulated. load: the machine's load average at the end."""

    case: Case
    found: Outcome
    alone: Outcome | None
    load: float

    @property
    def share(self) -> float:
        """Of the speed that the lengths alone allow."""
        return self.alone.seconds / self.found.seconds

    @property
    def bias(self) -> float:
        """Mean length trained, of the mean length begun."""
        return fmean(self.found.trained) / fmean(self.found.begun)

    def __str__(self) -> str:
        alone = f" of {self.alone.seconds:.1f}, {self.share:.0%}" if self.alone else ""
        lengths = f"{fmean(self.found.trained):.1f} tokens trained, {fmean(self.found.begun):.1f} begun"
        return f"{self.case.name}: {self.found.seconds:.1f} s{alone}; idle {self.found.idle:.0%}; {lengths}"


def speed(rows: Sequence[Row]) -> str:
    """A line for each policy and redundancy, a column for each eta."""
    rows = [row for row in rows if row.alone]
    etas = sorted({row.case.max_staleness for row in rows})
    found = {(row.case.policy, row.case.redundancy, row.case.max_staleness): row for row in rows}
    lines = [["publication", "B'/B", *(f"η = {eta}" for eta in etas)]]
    for policy, redundancy in dict.fromkeys(key[:2] for key in found):
        cells = [_cell(found[policy, redundancy, eta]) for eta in etas]
        lines.append([policy, f"{redundancy:.2f}", *cells])
    return _markdown(lines)


def _cell(row: Row) -> str:
    return (
        f"{row.found.seconds:.0f} s of {row.alone.seconds:.0f} ({row.share:.0%}), "
        f"idle {100 * row.found.idle:.0f} of {row.alone.idle:.0%}"
    )


def bias(rows: Iterable[Row]) -> str:
    """A line for each case."""
    lines = [["publication", "η", "B'/B", "proactive", "begun", "mean length trained / begun", "seconds"]]
    for row in rows:
        case, found = row.case, row.found
        first = [case.policy, str(case.max_staleness), f"{case.redundancy:.2f}", case.proactive or "-"]
        ratio = f"{fmean(found.trained):.0f} / {fmean(found.begun):.0f} = {row.bias:.2f}"
        lines.append([*first, str(len(found.begun)), ratio, f"{found.seconds:.0f}"])
    return _markdown(lines)


def _markdown(lines: list[list[str]]) -> str:
    head, *rest = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, "|" + "---|" * len(lines[0]), *rest])
