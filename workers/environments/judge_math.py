"""Is this the expected answer? As math-verify sees it; in the judge's confined child (judge.py), never in a worker.

    \\frac{1}{2}  0.5          1.0
    x^2 + 2x + 1  (x + 1)^2    1.0
    10^{10^{10}}  3            no end: stopped from outside

Importing this judges a few answers, because the fork server imports it before it forks: what SymPy and ANTLR load late
and build at their first use is then there, once, for all children.
"""

import logging
from typing import Any

from math_verify import parse, verify

from workers.environments.answers import boxed

TYPICAL = [
    ("34", "34"),
    (r"\frac{1}{2}", "0.5"),
    ("(x + 1)^2", "x^2 + 2x + 1"),
    (r"x \in (-\infty, 3]", r"(-\infty, 3]"),
    (r"\{1, 2\}", r"\{2, 1\}"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}"),
]


def score(answer: str, problem: dict[str, Any]) -> float:
    """1.0 or 0.0. answer: as it stands in a box."""
    expected = str(problem["answer"])
    expected = (boxed(expected) or expected).strip().strip("$")
    # Its own time limits are alarms, and say so on the log; here the whole process has one.
    gold = parse(f"${expected}$", parsing_timeout=None)
    found = parse(rf"\boxed{{{answer}}}", parsing_timeout=None)
    return float(verify(gold, found, timeout_seconds=None))


logging.getLogger("math_verify").setLevel(logging.CRITICAL)
for _answer, _expected in TYPICAL:
    score(_answer, {"answer": _expected})
