"""Which traces a cold start is trained on, and how they get there.

    a problem's episodes ──flaw()?─┬─ none ─▶ kept ─┐
                                   └─ a word ───────┴─▶ traces.jsonl, a line a problem
    all problems done: traces.json (how many, and why the others are not kept), then traces.bin
    none is kept:      traces.rejected.jsonl, to look at; the next attempt begins anew

Kept is what earned its full reward (any, with cold_start.failures) and is whole in form: it ended by itself, as did
each reply in it, and no tool call in it was malformed. traces.bin holds the trajectories in the order of the problems,
which is random.
"""

import base64
import json
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline import config, jsonl, trajectory_file
from pipeline.data import Problem
from pipeline.errors import ConfigError, HeadraceError
from pipeline.trajectory import Trajectory
from workers.chat import Chat

log = logging.getLogger(__name__)


class NoneKept(ConfigError):
    """No trace to train on."""


def flaw(t: Trajectory, chat: Chat, failures: bool = False) -> str | None:
    """Why a trace is not kept, in a word; None: the verifier gave it all, and nothing in its form is wrong.

    failures: whatever the verifier gave it.
    """
    if t.finish_reason != "stop":
        return t.finish_reason
    for name in ("malformed_calls", "no_answer"):
        if t.metrics.get(name):
            return name
    ends = np.flatnonzero(np.diff(t.loss_mask.astype(np.int8), append=0) == -1)
    if (t.tokens[ends] != chat.end_token).any():
        return "cut"  # a reply in mid-episode that did not end by itself
    if t.tokens.max() >= len(chat.tokenizer):
        return "unknown_token"
    return None if t.outcome == 1 or failures else "wrong"


def as_line(
    problem: Problem, played: Sequence[Trajectory | HeadraceError], chat: Chat, failures: bool = False
) -> dict[str, Any]:
    """What traces.jsonl holds of a problem. best: outcome; failure: the last one, in words; failures: as of `flaw`."""
    line: dict[str, Any] = {"id": problem["id"], "kept": [], "flaws": Counter(), "best": None, "failure": None}
    for each in played:
        if isinstance(each, HeadraceError):
            line["flaws"][each.code.lower()] += 1
            line["failure"] = str(each)
            continue
        line["best"] = max(each.outcome, line["best"] or 0.0)
        if why := flaw(each, chat, failures):
            line["flaws"][why] += 1
        else:
            line["kept"].append(base64.b64encode(each.encode()).decode())
    return line


def finish(settings: config.Config, problems: Sequence[Problem]) -> None:
    """traces.jsonl becomes traces.json and traces.bin. Raises ConfigError if no trace was kept."""
    path = settings.folder / "traces.jsonl"
    lines = {line["id"]: line for line in jsonl.read(path)}
    lines = [lines[problem["id"]] for problem in problems]
    kept, flaws = [len(line["kept"]) for line in lines], _flaws(lines)
    summary = {
        "teacher": settings.cold_start.teacher,
        "episodes": sum(kept) + flaws.total(),
        "kept": sum(kept),
        "not_kept": dict(flaws.most_common()),
        "problems": len(lines),
        "problems_kept": len(lines) - kept.count(0),
    }
    whole = "{kept} of {episodes} traces are kept, of {problems_kept} of {problems} problems".format_map(summary)
    log.info("%s%s", whole, f"; not kept: {_counted(flaws)}" if flaws else "")
    if not any(kept):
        raise none_kept(settings, lines)
    (settings.folder / "traces.json").write_text(json.dumps(summary, indent=1) + "\n")
    encoded = (base64.b64decode(trace) for line in lines for trace in line["kept"])
    trajectory_file.write(settings.folder / "traces.bin", map(Trajectory.decode, encoded))
    path.unlink()


def none_kept(settings: config.Config, lines: Sequence[dict[str, Any]]) -> NoneKept:
    """What to raise then; the lines are put aside, or the next attempt would find their problems done."""
    aside = settings.folder / "traces.rejected.jsonl"
    (settings.folder / "traces.jsonl").replace(aside)
    outcomes = [line["best"] for line in lines if line["best"] is not None]
    failure = next((line["failure"] for line in reversed(lines) if line["failure"]), None)
    return NoneKept(
        f"no trace of {len(lines)} problems is verifier-positive and whole ({_counted(_flaws(lines))}"
        f"{f'; the best outcome is {max(outcomes):g}, kept is 1 alone' if outcomes else ''}"
        f"{f'; the last failure: {failure}' if failure else ''}; a line a problem in {aside}); remove [cold_start], "
        f"give {settings.environment.name} a demonstrate() for [data]'s tasks, or cold_start a teacher that solves some"
    )


def _flaws(lines: Sequence[dict[str, Any]]) -> Counter:
    flaws = Counter()
    for line in lines:
        flaws.update(line["flaws"])
    return flaws


def _counted(flaws: Counter) -> str:
    return ", ".join(f"{word} {count}" for word, count in flaws.most_common()) or "none was played"
