"""The picture of a run in a terminal: one column at 80×24, two from 120 columns on, never a line more than there are.

headrace · demo   version 19 of 60  ████░░░░     headrace · demo   version 19 of 60  ████████████░░░░░░░░░
what the next update waits for                   what the next update waits for
reward, held-out, tokens, staleness, time        reward, held-out, …       │ engines
buffers                                          buffers                   │ processes
engines                                          the reward as a chart     │ the newest events
processes
"""

from collections.abc import Callable, Iterable, Sequence

from rich.table import Table
from rich.text import Text

from pipeline.alarms import alarms
from pipeline.doing import doing, happened
from pipeline.ledger_types import BufferView, EngineView
from pipeline.snapshot import Snapshot

SPARKS = "▁▂▃▄▅▆▇█"
WIDE = 120
ENGINE_STYLES = {"ready": "green", "failed": "red"}


def render(s: Snapshot, height: int = 24, width: int = 80, said: str = "", alarm: bool = True) -> Table:
    """At most `height` - 1 lines, the last being the cursor's. said: that the picture is no longer true, and why; an
    alarm, unless it has merely ended."""
    waiting = s.status["waiting"]
    line = Text(waiting, "yellow") if waiting else Text("nothing is waited for: the trainer goes on", "green")
    if said:
        line = Text(said, "bold red" if alarm else "bold")
    lines = [head(s, width), line, *(Text(warning, "bold red") for warning in alarms(s.last))]
    rows = max(0, height - len(lines) - 1)
    grid = Table.grid(expand=False)
    if width < WIDE:
        grid.add_column(no_wrap=True, overflow="ellipsis")
        for line in [*lines, *one_column(s, rows, width)]:
            grid.add_row(line)
        return grid
    left = (width - 3) // 2
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for line in lines:
        grid.add_row(line)
    columns = Table.grid(expand=False, padding=(0, 3, 0, 0))
    columns.add_column(no_wrap=True, overflow="ellipsis", width=left)
    columns.add_column(no_wrap=True, overflow="ellipsis", width=width - left - 3)
    for pair in zip(*two_columns(s, rows, left), strict=True):
        columns.add_row(*pair)
    grid.add_row(columns)
    return grid


def one_column(s: Snapshot, rows: int, width: int) -> list[Text]:
    lines = [*progress(s), *buffers(s, 3, width), *engines(s, 2)]
    return lines + processes(s, rows - len(lines))


def two_columns(s: Snapshot, rows: int, width: int) -> tuple[list[Text], list[Text]]:
    """Both of `rows` lines."""
    left = [*progress(s, width - 30), Text(), *buffers(s, 8, width), Text()]
    left += chart([m["reward"] for m in s.metrics if "reward" in m], width - 10, min(12, rows - len(left)))
    right = [*engines(s, 8), Text()]
    right += processes(s, max(3, (rows - len(right)) * 2 // 3))
    right += [Text(), *newest(s, rows - len(right) - 1)]
    return tuple((lines + [Text()] * rows)[:rows] for lines in (left, right))


def head(s: Snapshot, width: int) -> Text:
    line = Text.assemble(
        (f" headrace · {s.run} ", "reverse bold"),
        f"  version {s.version} of {s.total_steps}   {clock(s.elapsed_s)}  ",
    )
    return line.append_text(bar([(s.version, "green")], s.total_steps, max(0, min(width, 160) - line.cell_len - 1)))


def progress(s: Snapshot, curve: int = 48) -> list[Text]:
    """Reward, held-out success, tokens, staleness, and where the trainer's time went."""
    rewards = [m["reward"] for m in s.metrics if "reward" in m]
    reward = label("reward").append(sparkline(rewards[-curve:]) or "no update yet").append(" ")
    if rewards:
        reward.append(f"{s.mean_reward():.3f}", "bold").append(" mean of 5", "dim")
    held_out = []
    for evaluation in s.evaluations[-5:]:
        shown = f"{evaluation.success:.2f}" if evaluation.state == "done" else evaluation.state
        held_out.append(f"v{evaluation.version} {shown}")
    tokens = label("tokens/s").append(f"{s.tokens_per_second:,.0f} generated")
    if "tokens_per_second" in s.last:
        tokens.append(f"   {s.last['tokens_per_second']:,.0f} trained")
    spent = "  ".join(f"{cause} {share:.0%}" for cause, share in s.shares.items() if share >= 0.005)
    return [
        reward,
        label("held-out").append(" → ".join(held_out) or "none yet"),
        tokens,
        label("staleness").append(histogram(s.last.get("staleness", {})) or "no update yet"),
        label("time").append(spent or "no update yet"),
    ]


def buffers(s: Snapshot, rows: int, width: int) -> list[Text]:
    legend = label("buffers").append("█ occupied ", "green").append("█ reserved ", "yellow").append("░ open", "dim")
    return [legend, *(buffer_line(view, min(width, 100) - 38) for view in open_buffers(s)[:rows])]


def open_buffers(s: Snapshot) -> list[BufferView]:
    return [view for view in s.buffers if view.state != "CONSUMED"]


def buffer_line(view: BufferView, width: int) -> Text:
    """One buffer: entries occupied, reserved (due here at the latest), and open, of its capacity."""
    state = "READY +" if view.state == "READY_WITH_CAPACITY" else view.state
    line = label(f"  {view.id}").append(f"{state:<9}", "green" if state.startswith("READY") else "")
    line.append_text(bar([(view.occupied, "green"), (view.reserved, "yellow")], view.capacity, width))
    return line.append(f" {view.occupied} + {view.reserved} of {view.capacity}")


def engines(s: Snapshot, rows: int) -> list[Text]:
    if s.resting:
        return []
    views = [EngineView(**engine) for engine in s.status.get("engines", ())]
    ready = sum(view.state == "ready" for view in views)
    title = label("engines").append(f"{ready} of {len(views)} ready", "" if ready else "yellow")
    worst_first = sorted(views, key=lambda view: (view.state == "ready", view.name))
    return [title, *at_most(worst_first, rows, lambda view: engine_line(view, s.load.get(view.name, 0)))]


def engine_line(view: EngineView, load: int) -> Text:
    line = label(f"  {view.name}").append(f"v{view.version}" if view.version >= 0 else "–").append("  ")
    line.append(view.state, ENGINE_STYLES.get(view.state, "yellow"))
    return line.append(f"  {load} entries in flight").append(f"  {view.reason}" if view.reason else "", "dim")


def processes(s: Snapshot, rows: int) -> list[Text]:
    """What each does; if there are more than `rows`, how many more."""
    if s.resting:
        return []
    title = label("processes").append("" if s.processes else "none reports", "dim")
    return [title, *at_most(s.processes, rows - 1, process_line)]


def process_line(process: dict) -> Text:
    return label(f"  {process['name']}").append(doing(process), "yellow" if process.get("waiting") else "")


def newest(s: Snapshot, rows: int) -> list[Text]:
    """The newest events."""
    lines = [label("events")] if s.events else []
    for event in s.events[max(0, len(s.events) - rows + 1) :]:
        lines.append(label(f"  {event.kind}").append(happened(event), "dim"))
    return lines[:rows]


def at_most(items: Sequence, rows: int, line: Callable) -> list[Text]:
    """One line an item; where they are more than `rows`, the last line counts those left out."""
    if len(items) <= rows:
        return [line(item) for item in items]
    shown = [line(item) for item in items[: max(0, rows - 1)]]
    return [*shown, Text(f"  … and {len(items) - len(shown)} more", "dim")]


def chart(values: Sequence[float], width: int, height: int) -> list[Text]:
    """Columns of eighths, the newest `width` values; the scale is [0, 1], or wider if the values are."""
    values = values[-width:]
    if not values or height < 4:
        return []
    low, high = bounds(values)
    units = [round((v - low) / (high - low) * 8 * height) for v in values]
    lines = []
    for row in range(height - 1, -1, -1):
        cells = "".join(" " if u <= 8 * row else SPARKS[min(8, u - 8 * row) - 1] for u in units)
        edge = f"{high:.3g}" if row == height - 1 else f"{low:.3g}" if row == 0 else ""
        lines.append(Text.assemble((f"{edge:>6} ", "dim"), ("│", "dim"), (cells, "green")))
    return lines


def label(name: str) -> Text:
    return Text().append(f"{name:<13}" if len(name) < 13 else f"{name} ", "cyan")


def bar(parts: Iterable[tuple[float, str]], total: float, width: int) -> Text:
    """Parts of a total as coloured cells; the rest is dim."""
    line, used, share = Text(), 0, 0.0
    for amount, style in parts:
        share += amount / total if total else 0
        cells = min(width, round(share * width)) - used
        line.append("█" * cells, style)
        used += cells
    return line.append("░" * (width - used), "dim")


def sparkline(values: Sequence[float]) -> str:
    """One character a value; the scale is [0, 1], or wider if the values are."""
    if not values:
        return ""
    low, high = bounds(values)
    return "".join(SPARKS[round((v - low) / (high - low) * (len(SPARKS) - 1))] for v in values)


def bounds(values: Sequence[float]) -> tuple[float, float]:
    return min(0.0, *values), max(1.0, *values)


def histogram(counts: dict[str, int]) -> str:
    """`{"0": 12, "1": 52}` as "0: 19% 1: 81%"."""
    total = sum(counts.values())
    return "  ".join(
        f"{k}: {100 * n / total:.0f}%" for k, n in sorted(counts.items(), key=lambda i: int(i[0])) if total
    )


def clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
