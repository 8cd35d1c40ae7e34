"""The panels of the picture of a run: each takes matplotlib axes and the lines of metrics.jsonl, and asks one question.

A panel whose numbers are in no line says so in its middle. matplotlib is imported by whoever has the axes.
"""

import math
from collections import Counter

TRAIL = 5  # updates in the trailing mean of a noisy curve, as in the figures of arXiv 2608.24870
RECENT = 20  # updates that the reliability of the values is measured on
BLUE, ORANGE, GREY = "#2166ac", "#d6604d", "#8c8c8c"
CAUSES = {  # of the trainer's time: colour, name
    "update": ("#1f9d6b", "update"),
    "ready": ("#f0b03c", "waits for data"),
    "fetch": ("#6bb9c4", "fetch"),
    "publish": ("#7a5ac8", "publish"),
    "checkpoint": ("#d6604d", "checkpoint"),
}


def number(value):
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def points(lines, key):
    """(versions, values) of the lines that have a finite number under `key`."""
    found = [(line["version"], line[key]) for line in lines if number(line.get(key)) is not None]
    return [version for version, _ in found], [value for _, value in found]


def trailing_mean(values):
    return [sum(window) / len(window) for window in (values[max(0, i - TRAIL + 1) : i + 1] for i in range(len(values)))]


def noisy(axes, versions, values, name):
    """Each update faintly, their trailing mean boldly; few updates get dots, as a single one has no line."""
    dots = {"marker": "o", "markersize": 3} if len(values) <= 150 else {}
    axes.plot(versions, values, color=BLUE, alpha=0.35, linewidth=1, **dots)
    axes.plot(versions, trailing_mean(values), color=BLUE, linewidth=2, label=f"{name}, mean of {TRAIL} updates")


def empty(axes, message):
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, message, transform=axes.transAxes, ha="center", va="center", color=GREY)


def reward(axes, updates, evals):
    axes.set_title("Does it learn?")
    axes.set_ylabel("reward, success rate")
    versions, rewards = points(updates, "reward")
    evaluated, success = points(evals, "success")
    if not rewards and not success:
        return empty(axes, "no reward and no evaluation yet")
    if rewards:
        noisy(axes, versions, rewards, "training reward")
    if success:
        errors = [number(line.get("stderr")) or 0 for line in evals if number(line.get("success")) is not None]
        style = {
            "color": ORANGE,
            "marker": "o",
            "markersize": 6 if len(success) <= 40 else 3,
            "linewidth": 1,
            "capsize": 3,
            "zorder": 3,
        }
        axes.errorbar(evaluated, success, yerr=errors, label="held-out success ± standard error", **style)
    if all(0 <= value <= 1 for value in rewards + success):
        axes.set_ylim(-0.03, 1.03)
    axes.legend(loc="best")


def staleness(axes, updates):
    from matplotlib import colormaps

    axes.set_title("How old was what it learned from?")
    axes.set_ylabel("trajectories in the update")
    counted = [
        (line["version"], Counter({int(age): count for age, count in line["staleness"].items()}))
        for line in updates
        if line.get("staleness")
    ]
    ages = sorted({age for _, counts in counted for age in counts})
    if not ages:
        return empty(axes, "no staleness recorded yet")
    versions, floor = [version for version, _ in counted], [0] * len(counted)
    shades = colormaps["YlGnBu"]
    for age in ages:
        heights = [counts[age] for _, counts in counted]
        shade = shades(0.3 + 0.65 * (age - ages[0]) / max(1, ages[-1] - ages[0]))
        axes.bar(versions, heights, bottom=floor, width=1, color=shade, label=f"{age}")
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set_ylim(0, max(floor) * 1.25)
    axes.grid(False, axis="x")
    axes.legend(title="staleness (versions)", ncols=min(6, len(ages)), loc="upper center", handlelength=1)


def mismatch(axes, updates):
    axes.set_title("Do trainer and engines agree?")
    axes.set_ylabel("mismatch KL (nats per token)")
    versions, divergence = points(updates, "mismatch_kl")
    if not divergence:
        return empty(axes, "no mismatch KL recorded yet")
    noisy(axes, versions, divergence, "KL")
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    axes.legend(loc="best")


def idle(axes, updates):
    axes.set_title("Where does the trainer's time go?")
    axes.set_ylabel("share of the time (%)")
    timed = [line for line in updates if number(line.get("step_seconds")) and spent(line)]
    if not timed:
        return empty(axes, "no timings recorded yet")
    versions, floor = [line["version"] for line in timed], [0.0] * len(timed)
    for cause, (color, name) in CAUSES.items():
        # of the seconds of a few updates together: a long one counts for more
        recent = [timed[max(0, i - TRAIL + 1) : i + 1] for i in range(len(timed))]
        wholes = [sum(sum(spent(line).values()) for line in lines) for lines in recent]
        parts = [sum(spent(line).get(cause, 0) for line in lines) for lines in recent]
        heights = [100 * part / whole for part, whole in zip(parts, wholes, strict=True)]
        if max(heights) >= 0.5:
            axes.bar(versions, heights, bottom=floor, width=1, color=color, label=name)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set_ylim(0, 128)
    axes.set_yticks(range(0, 101, 25))
    axes.grid(False, axis="x")
    axes.legend(ncols=3, loc="upper center", handlelength=1, columnspacing=0.8, handletextpad=0.4, fontsize=8)


def spent(line):
    """Seconds by cause; of an old line only the waiting for data is known."""
    waits = line.get("wait_seconds") or {"ready": line.get("idle_seconds")}
    found = {"update": line.get("step_seconds"), **waits}
    return {cause: seconds for cause, seconds in found.items() if number(seconds) is not None}


def lengths(axes, updates):
    axes.set_title("How long are trajectories?")
    axes.set_ylabel("tokens")
    versions, tokens = points(updates, "mean_length")
    if not tokens:
        return empty(axes, "no length recorded yet")
    noisy(axes, versions, tokens, "mean length")
    axes.set_ylim(0, max(tokens) * 1.25)
    axes.legend(loc="upper left")


def reliability(axes, updates):
    """Of each tenth of [0, 1] in which values lay: what was forecast there, and what came."""
    recorded = [line for line in updates if line.get("calibration")][-RECENT:]
    axes.set_title("Are values right, low and high?")
    axes.set_xlabel(f"value, last {len(recorded)} updates")
    axes.set_ylabel("outcome, mean")
    if not recorded:
        return empty(axes, "no calibration recorded yet")
    parts = [
        [sum(column) for column in zip(*rows, strict=True)]
        for rows in zip(*(line["calibration"] for line in recorded), strict=True)
    ]
    parts = [(count, forecast / count, came / count) for count, forecast, came in parts if count]
    most = max(count for count, _, _ in parts)
    axes.plot((0, 1), (0, 1), color=GREY, linestyle="--", linewidth=1, label="a perfect forecast")
    for count, forecast, came in parts:
        error = (came * (1 - came) / count) ** 0.5  # of a mean of outcomes that are 0 or 1
        axes.errorbar(forecast, came, yerr=error, color=BLUE, linewidth=1)
    areas = [12 + 120 * count / most for count, _, _ in parts]
    axes.scatter([p[1] for p in parts], [p[2] for p in parts], areas, color=BLUE, zorder=3, label="area: trajectories")
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(-0.03, 1.03)
    axes.legend(loc="lower right")


def calibration(axes, updates):
    axes.set_title("Do the values forecast outcomes?")
    axes.set_ylabel("Brier score (0 is perfect)")
    versions, scores = points(updates, "brier")
    if not scores:
        return empty(axes, "no Brier score recorded yet")
    noisy(axes, versions, scores, "frozen values")
    axes.axhline(0.25, color=GREY, linestyle="--", linewidth=1, label="always saying one half")
    axes.set_ylim(0, max(0.4, *scores) * 1.1)
    axes.legend(loc="upper right")
