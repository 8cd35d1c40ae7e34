"""Kills at random moments, until everything has been brought back every time; then the audit.

    up ─▶ first update ─▶ [pause ─▶ kill -9 of some process ─▶ FRESH more updates] × kills ─▶ down
       ─▶ up again to a last update ─▶ `headrace audit` is clean, nothing is left running

The product brings everything back by itself; a killed launcher is started again, as a person would. One kill in five is
followed by another before the run has recovered. A stall, or a launcher that ends by itself, is a failure.
"""

import random
import statistics
import time
from collections import Counter

from tests.chaos.run import LAUNCHER, NAME, Run

START_S = 400  # of everything, on a busy machine
RECOVERY_S = 300
FRESH = 4  # updates: one more than the buffers that may have been READY before the kill
LAST_UPDATES = 3


class Trial:
    def __init__(self, run: Run, draw: random.Random, kinds: list[str]):
        self.run, self.draw, self.kinds = run, draw, kinds
        self.killed = Counter()
        self.seconds: dict[str, list[float]] = {}  # kind -> until it had recovered, of kills that nothing followed
        self.failures: list[str] = []
        self.begun = time.monotonic()

    def fire(self, kills: int) -> None:
        self.run.up()
        if not self.run.wait_until(lambda: self.run.made >= 1, START_S):
            raise SystemExit(f"no first update within {START_S} s:\n{self.run.said()}")
        self.say(f"first update; {kills} kills follow")
        deck = (self.kinds * kills)[:kills]
        self.draw.shuffle(deck)
        for number, kind in enumerate(deck, 1):
            time.sleep(self.draw.uniform(0.2, 5.0))
            self.kill(number, kind, recover=self.draw.random() > 0.2 or number == kills)

    def kill(self, number: int, kind: str, recover: bool) -> None:
        run, before = self.run, self.run.made
        if not run.wait_until(lambda: run.alive(kind), RECOVERY_S):
            self.fail(f"no {kind} to kill")
            return
        dead = run.kill(kind)
        killed = time.monotonic()
        self.killed[kind] += 1
        if kind == LAUNCHER:
            run.up()
        if not recover:
            self.say(f"kill {number}: {kind}, and the next one before it has recovered")
            self.seconds.setdefault(kind, [])
            return
        if run.wait_until(lambda: run.made >= before + FRESH and run.alive(kind) - {dead}, RECOVERY_S):
            took = time.monotonic() - killed
            self.seconds.setdefault(kind, []).append(took)
            self.say(f"kill {number}: {kind}, recovered after {took:.1f} s ({run.made} updates made)")
        else:
            self.fail(f"kill {number}, {kind}: not recovered within {RECOVERY_S} s")

    def fail(self, what: str) -> None:
        ended = f"; `up` ended by itself with {self.run.launcher.returncode}" if self.run.ended else ""
        self.failures.append(f"{what}{ended}\n{self.run.said()}")
        self.say(f"FAILED: {self.failures[-1]}")
        if self.run.ended:
            self.run.up()

    def finish(self) -> None:
        """Stop, go on to a last update, and audit the whole."""
        run = self.run
        code, said = run.headrace("down", NAME)
        if code:
            self.fail(f"down: {said}")
        run.launcher.wait(RECOVERY_S)
        last = run.made + LAST_UPDATES
        run.up(last)
        run.launcher.wait(START_S + RECOVERY_S)
        if run.launcher.returncode or run.made != last:
            self.failures.append(f"{run.made} of {last} updates, exit code {run.launcher.returncode}\n{run.said(30)}")
        if left := run.left_over():
            self.failures.append(f"still running: {left}")
        code, said = run.headrace("audit", NAME)
        print(said)
        if code:
            self.failures.append(f"audit: exit code {code}")
        self.say(f"{run.made} updates made")

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - self.begun:7.1f} s  {what}", flush=True)

    def table(self) -> str:
        rows = [("killed", "times", "recovered from alone", f"median s until {FRESH} more updates", "longest")]
        for kind, seconds in sorted(self.seconds.items()):
            numbers = (f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}") if seconds else ("-", "-")
            rows.append((kind, str(self.killed[kind]), str(len(seconds)), *numbers))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
