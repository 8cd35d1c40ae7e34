"""Rollouts of very different lengths: `python -m tests.sweep`. A trial by hand, of minutes; no part of pytest.

case.py     the lengths, slots and times; one run of the sweep
engine.py   engines that play the time of a reply
trial.py    a case on the product
bound.py    the same case without any overhead: what the lengths alone allow
table.py    both, in Markdown

--side-by-side: that many runs at once. They sleep most of the time; the numbers are good while the load is low.
"""

import argparse
import itertools
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.sweep.bound import Bound
from tests.sweep.case import Case, Outcome
from tests.sweep.table import Row, bias, speed
from tests.sweep.trial import make_model, play

ETAS, REDUNDANCIES, POLICIES = (0, 1, 2, 4), (1.0, 1.25), ("drain", "interrupt", "retract")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep")
    parser.add_argument("--eta", type=int, nargs="+", default=ETAS)
    parser.add_argument("--redundancy", type=float, nargs="+", default=REDUNDANCIES, help="B'/B")
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument("--in-turns", action="store_true", help="engines load one after another, not at once")
    parser.add_argument("--proactive", choices=["retry", "truncate"], help="also with this filter, where B' = B")
    parser.add_argument("--side-by-side", type=int, default=4, metavar="RUNS")
    parser.add_argument("--folder", type=Path, help="where to run; it must be empty. Default: a temporary one")
    given = parser.parse_args()
    turns = given.in_turns
    cases = [Case(*each, in_turns=turns) for each in itertools.product(given.eta, given.redundancy, given.policy)]
    if given.proactive:
        proactive = itertools.product(given.eta, [1.0], given.policy, [given.proactive])
        cases += [Case(*each, in_turns=turns) for each in proactive]
    folder = given.folder or Path(tempfile.mkdtemp(prefix="headrace-sweep-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"everything is in {folder}", flush=True)
    model = make_model(folder.resolve())
    with ProcessPoolExecutor(given.side_by_side) as pool:
        rows = list(pool.map(_row, cases, itertools.repeat(folder.resolve()), itertools.repeat(model)))
    print(speed(rows), bias(rows), sep="\n\n")
    loads = [row.load for row in rows]
    conditions = f"{os.cpu_count()} cores, {given.side_by_side} runs at once"
    print(f"\n{conditions}, load average {min(loads):.1f} to {max(loads):.1f}")
    return 0


def _row(case: Case, folder: Path, model: Path) -> Row:
    alone: Outcome | None = None if case.proactive else Bound(case).run()
    row = Row(case, play(case, folder, model), alone, os.getloadavg()[0])
    print(row, flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
