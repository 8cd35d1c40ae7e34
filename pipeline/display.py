"""The live display of `headrace up`: the picture on a terminal; one plain line every few seconds elsewhere.

Snapshots.read() ──▶ Snapshot ──picture.render()──▶ rich       status, buffers, metrics, evaluations, processes
                              └──plain()──────────▶ one line
"""

import sys
import time

from rich.console import Console
from rich.live import Live

from pipeline.alarms import alarms
from pipeline.errors import UnknownRun
from pipeline.picture import clock, histogram, render
from pipeline.snapshot import Snapshot, Snapshots

REFRESH_S = 0.5
PLAIN_S = 5.0


class Display:
    """`with Display(snapshots) as display:`, then `display.refresh()` in a loop; `display.say` prints above it."""

    def __init__(self, snapshots: Snapshots, terminal: bool | None = None):
        self._snapshots = snapshots
        self._terminal = sys.stdout.isatty() if terminal is None else terminal
        self._next = 0.0
        self._live = None

    def __enter__(self) -> "Display":
        if self._terminal:
            self._live = Live(console=Console(), auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(self, *exception) -> None:
        if self._live:
            self._live.stop()

    def refresh(self, now: bool = False) -> None:
        """Read and draw, if it is time to; call it often."""
        if time.monotonic() < self._next and not now:
            return
        self._next = time.monotonic() + (REFRESH_S if self._terminal else PLAIN_S)
        try:
            snapshot = self._snapshots.read()
        except UnknownRun:  # the coordinator has not made it yet
            return
        if self._live:
            width, height = self._live.console.size
            self._live.update(render(snapshot, height, width), refresh=True)
        else:
            print(plain(snapshot), flush=True)

    def say(self, text: str) -> None:
        if self._live:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)


def plain(s: Snapshot) -> str:
    """One line for a log."""
    parts = [clock(s.elapsed_s), f"update {s.version}/{s.total_steps}"]
    if s.last:
        parts += [f"reward {s.mean_reward():.2f}", f"staleness {histogram(s.last.get('staleness', {}))}"]
        parts += [f"{s.tokens_per_second:.0f} tokens/s"]
    if held_out := [e for e in s.evaluations if e.state == "done"]:
        parts.append(f"held-out {held_out[-1].success:.2f} at v{held_out[-1].version}")
    if waiting := next((p["waiting"] for p in s.processes if p["role"] == "trainer" and p.get("waiting")), ""):
        parts.append(f"trainer waits for {waiting}")
    elif not s.last and s.status["waiting"]:
        parts.append(s.status["waiting"])
    return " · ".join([*parts, *alarms(s.last)])
