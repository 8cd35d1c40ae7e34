"""Chaos on real processes: `python -m tests.chaos --kills 50 --seed 1 [engines.count=2 …]`. By hand; no part of pytest.

run.py     a run under `headrace up`, and its processes
trial.py   kills, recoveries and the audit
"""

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import LAUNCHER, NAME, Run
from tests.chaos.trial import Trial

OFTEN = ["coordinator", "worker", "trainer", "redis"]
RARELY = ["engine", LAUNCHER]  # half as often: SGLang takes longer to start than all the others together


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", default=OFTEN + OFTEN + RARELY, help="what to kill")
    parser.add_argument("--folder", type=Path, help="where to run; it must be empty. Default: a temporary one")
    parser.add_argument("overrides", nargs="*", metavar="SECTION.KEY=VALUE", help="of the run's settings")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the run is stopped, whatever ends the trial
    folder = given.folder or Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {given.seed}, everything is in {folder}", flush=True)
    run = Run(folder.resolve(), *given.overrides)
    trial = Trial(run, random.Random(given.seed), given.kinds)
    try:
        trial.fire(given.kills)
        trial.finish()
    finally:
        if not run.ended:
            run.headrace("down", NAME)
    print(trial.table())
    for failure in trial.failures:
        print(f"FAILED: {failure}")
    return 1 if trial.failures else 0


if __name__ == "__main__":
    sys.exit(main())
