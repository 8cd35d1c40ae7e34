"""The live picture of a run, for a terminal of 80×24 or larger; one plain line every few seconds elsewhere.

    Redis ──Snapshots.read()──▶ Snapshot ──render()──▶ rich       status, buffers, metrics, evaluations, processes
                                         └─plain()──▶ one line

All it knows comes from Redis, so that anybody who reaches the ledger can draw the same picture.
"""

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from pipeline import evals
from pipeline.errors import UnknownRun
from pipeline.ledger_view import LedgerView
from pipeline.progress import read_metrics, read_processes

REFRESH_S = 0.5
PLAIN_S = 5.0
SPARKS = "▁▂▃▄▅▆▇█"
WIDTH = 80


@dataclass
class Snapshot:
    """What is shown at one moment."""

    run: str
    total_steps: int
    elapsed_s: float
    status: dict[str, Any]
    buffers: list
    metrics: list[dict[str, Any]]  # the newest updates, oldest first
    evaluations: list[evals.Evaluation]
    processes: list[dict[str, Any]]

    @property
    def version(self) -> int:
        return self.status["version"]

    @property
    def last(self) -> dict[str, Any]:
        return self.metrics[-1] if self.metrics else {}


@dataclass
class Snapshots:
    """Reads snapshots of one run; remembers the metrics it has read."""

    client: Redis
    run: str
    total_steps: int
    begun: float = field(default_factory=time.monotonic)
    keep: int = 200
    _metrics: list[dict[str, Any]] = field(default_factory=list)
    _after: str = "0-0"

    def read(self) -> Snapshot:
        ledger = LedgerView(self.client, self.run)
        new, self._after = read_metrics(self.client, self.run, self._after)
        self._metrics = (self._metrics + new)[-self.keep :]
        return Snapshot(
            self.run,
            self.total_steps,
            time.monotonic() - self.begun,
            ledger.status(),
            ledger.buffers(),
            self._metrics,
            evals.read_all(self.client, self.run),
            read_processes(self.client, self.run),
        )


class Display:
    """`with Display(snapshots) as display:`, then `display.refresh()` in a loop; `display.say` prints above it."""

    def __init__(self, snapshots: Snapshots, terminal: bool | None = None):
        self._snapshots = snapshots
        self._terminal = sys.stdout.isatty() if terminal is None else terminal
        self._next = 0.0
        self._live = None

    def __enter__(self) -> "Display":
        if self._terminal:
            from rich.console import Console
            from rich.live import Live

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
            height = self._live.console.size.height
            self._live.update(render(snapshot, height), refresh=True)
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
        parts += [f"reward {mean_reward(s.metrics):.2f}", f"staleness {histogram(s.last.get('staleness', {}))}"]
        parts += [f"{tokens_per_second(s):.0f} tokens/s"]
    if held_out := [e for e in s.evaluations if e.state == "done"]:
        parts.append(f"held-out {held_out[-1].success:.2f} at v{held_out[-1].version}")
    if waiting := next((p["waiting"] for p in s.processes if p["role"] == "trainer" and p.get("waiting")), ""):
        parts.append(f"trainer waits for {waiting}")
    elif not s.last and s.status["waiting"]:
        parts.append(s.status["waiting"])
    return " · ".join(parts)


def render(s: Snapshot, height: int = 24):
    """The picture, at most `height` lines."""
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble(
        (f" headrace · {s.run} ", "reverse bold"),
        f"  version {s.version} of {s.total_steps}   {clock(s.elapsed_s)}  ",
    )
    head.append_text(bar([(s.version, "green")], s.total_steps, max(0, WIDTH - head.cell_len - 1)))
    lines = [head, Text()]
    reward, held_out = [m["reward"] for m in s.metrics if "reward" in m], []
    lines.append(label("reward").append(f"{sparkline(reward[-48:])} "))
    if reward:
        lines[-1].append(f"{mean_reward(s.metrics):.3f}", "bold").append(" mean of 5", "dim")
    for evaluation in s.evaluations[-5:]:
        shown = f"{evaluation.success:.2f}" if evaluation.state == "done" else evaluation.state
        held_out.append(f"v{evaluation.version} {shown}")
    lines.append(label("held-out").append(" → ".join(held_out) or "none yet"))
    lines.append(label("tokens/s").append(f"{tokens_per_second(s):,.0f} generated"))
    if "tokens_per_second" in s.last:
        lines[-1].append(f"   {s.last['tokens_per_second']:,.0f} trained")
    lines.append(label("staleness").append(histogram(s.last.get("staleness", {}))))
    lines.append(Text())
    lines.append(label("buffers").append("█ occupied ", "green").append("█ reserved", "yellow"))
    for view in [view for view in s.buffers if view.state != "CONSUMED"][:4]:
        lines.append(buffer_line(view))
    lines.append(Text())
    rows = max(1, height - len(lines) - 2)
    for process in s.processes[:rows]:
        lines.append(process_line(process))
    if len(s.processes) > rows:
        lines.append(Text(f"… and {len(s.processes) - rows} more", "dim"))
    grid = Table.grid(expand=False)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for line in lines:
        grid.add_row(line)
    return grid


def label(name: str):
    from rich.text import Text

    return Text().append(f"{name:<12}", "cyan")


def buffer_line(view):
    """One buffer: entries occupied, reserved (due here at the latest), and open, of its capacity."""
    line = label(f"  {view.id}").append(f"{view.state:<9.8}")
    line.append_text(bar([(view.occupied, "green"), (view.reserved, "yellow")], view.capacity, 32))
    return line.append(f" {view.occupied} + {view.reserved} of {view.capacity}")


def process_line(process: dict[str, Any]):
    """What a process waits for, or what it does."""
    line = label(process["name"][:11])
    since = time.time() - float(process.get("since_ms", 0)) / 1000
    if waiting := process.get("waiting"):
        return line.append(f"waits {since:.0f} s for {waiting}" if since >= 1 else f"waits for {waiting}", "yellow")
    known = {"name", "role", "pid", "host", "waiting", "since_ms"}
    return line.append(", ".join(f"{k} {number(v)}" for k, v in process.items() if k not in known) or "works")


def bar(parts: list[tuple[float, str]], total: float, width: int):
    """Parts of a total as coloured cells; the rest is dim."""
    from rich.text import Text

    line, used, share = Text(), 0, 0.0
    for amount, style in parts:
        share += amount / total if total else 0
        cells = min(width, round(share * width)) - used
        line.append("█" * cells, style)
        used += cells
    return line.append("░" * (width - used), "dim")


def sparkline(values: list[float]) -> str:
    """One character a value; the scale is [0, 1], or wider if the values are."""
    if not values:
        return ""
    low, high = min(0.0, *values), max(1.0, *values)
    return "".join(SPARKS[round((v - low) / (high - low) * (len(SPARKS) - 1))] for v in values)


def histogram(counts: dict[str, int]) -> str:
    """`{"0": 12, "1": 52}` as "0: 19% 1: 81%"."""
    total = sum(counts.values())
    return "  ".join(
        f"{k}: {100 * n / total:.0f}%" for k, n in sorted(counts.items(), key=lambda i: int(i[0])) if total
    )


def mean_reward(metrics: list[dict[str, Any]], of: int = 5) -> float:
    rewards = [m["reward"] for m in metrics if "reward" in m][-of:]
    return sum(rewards) / len(rewards) if rewards else float("nan")


def tokens_per_second(s: Snapshot) -> float:
    """Generated by all workers together."""
    return sum(float(p.get("tokens_s", 0) or 0) for p in s.processes if p["role"] == "worker")


def number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
