"""What a measurement hands in: one line of the table, with the numbers behind it.

| measure | value | target | met |        median of five rounds, and the least and the most of them
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

ROUNDS = 5


@dataclass(frozen=True)
class Result:
    """target: the sentence that the issue asks for, empty if there is none; met: None then."""

    measure: str
    value: str
    target: str = ""
    met: bool | None = None
    rounds: tuple[float, ...] = ()


def ratio(measure: str, rounds: Sequence[float], below: float | None = None, above: float | None = None) -> Result:
    """A ratio of two numbers of the same round; the target is a bound of the median."""
    median = statistics.median(rounds)
    value = f"{median:.2f} ({min(rounds):.2f} - {max(rounds):.2f})"
    if below is not None:
        return Result(measure, value, f"<= {below:g}", median <= below, tuple(rounds))
    if above is not None:
        return Result(measure, value, f">= {above:g}", median >= above, tuple(rounds))
    return Result(measure, value, rounds=tuple(rounds))


def markdown(results: Sequence[Result]) -> str:
    lines = ["| measure | value | target | met |", "|---|---|---|---|"]
    for r in results:
        met = {None: "", True: "yes", False: "**no**"}[r.met]
        lines.append(f"| {r.measure} | {r.value} | {r.target} | {met} |")
    return "\n".join(lines)
