"""The ledger under everything that can go wrong, against its model, on both servers; after every step every invariant.

    workers ──┐                  ┌── replies get lost, calls and transactions are repeated, late, out of order
    trainers ─┼─▶ two clients ───┤   scripts are flushed, Redis restarts, Redis loses its last writes
    reaper ───┘                  └── workers crash, leases end, trainers are replaced, clocks step back

Every transition is sent twice: the same answer, and nothing changed. A refusal writes nothing. In the end everything in
flight finishes or is released, and head becomes READY: liveness.

`make test` runs the short profile. The long one: HYPOTHESIS_PROFILE=long python -m pytest -s -k state_machine
"""

import itertools
import os
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.pipeline.ledger_machine.base import either, engine, outcomes, pick
from tests.pipeline.ledger_machine.surroundings import Surroundings
from tests.pipeline.ledger_machine.trainer import Trainers
from tests.pipeline.ledger_machine.workers import Workers

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
EXAMPLES = {"fakeredis": (10, 30), "redis": (40, 50)}  # how many, of how many steps
LONG_EXAMPLES = (2000, 60)
numbers = itertools.count()


class LedgerMachine(Workers, Trainers, Surroundings):
    """All rules together, and one that keeps the run going."""

    @rule(
        i=either,
        e=engine,
        engines=st.lists(engine, min_size=3, max_size=9),
        finished=st.lists(pick, min_size=1, max_size=6),
        released=st.lists(pick, max_size=2),
        outcomes=outcomes,
        credited=st.sampled_from([True, True, True, False]),
    )
    def work_goes_on(self, i, e, engines, finished, released, outcomes, credited):
        """One engine gets the newest weights, all fill the window, some entries finish, the trainer has its turn; it
        may forget to credit."""
        if not self.on_disk:
            self.snapshot()
        self.load(i, e, 0)
        for n, source in enumerate(engines):
            self.reserve(i, n % 2, source, 1)
        for n in finished:
            if self.model.running():
                self.finish(i, n, outcomes[n % 3 :] + outcomes[: n % 3])
        for n in released:
            if self.model.running():
                self.release(i, n, "cancelled")
        self.consume(i, 0)
        if credited and self.model.rules.evidence == "receipt":
            self.credit_all(i)
        self.publish(i, 0)


@pytest.mark.timeout(0 if LONG else 300)
def test_the_ledger_is_what_its_model_says_whatever_goes_wrong(client, run, request):
    server = request.node.callspec.params["client"]
    examples, steps = LONG_EXAMPLES if LONG else EXAMPLES[server]
    start = time.monotonic()

    def machine():
        client.flushdb()  # what the one before left: a look takes longer in a full Redis
        return LedgerMachine(client, f"{run}-{next(numbers)}")

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=not LONG,
            suppress_health_check=list(HealthCheck),
        ),
    )
    seed = request.config.getoption("hypothesis_seed") if LONG else "fixed"
    print(f"{server}: {examples} examples of {steps} steps, seed {seed}, {time.monotonic() - start:.0f} s, 0 failures")
