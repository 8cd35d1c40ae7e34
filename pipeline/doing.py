"""What each process does and what has happened, in words: for `status`, `workers list`, `top` and the web page.

hr:{run}:process:worker-0   waiting "" · evaluating 15                   ──▶ evaluates version 15
                            waiting "" · in_flight 63 · tokens_s 467     ──▶ 63 episodes in flight, 467 tokens/s
                            waiting "a place in the buffers" · since_ms  ──▶ waits 7 s for a place in the buffers
"""

import re
import time
from typing import Any

from pipeline.events import Event

LEFT_OUT = {"ms", "digest"}
FIXED = {"name", "role", "pid", "host", "waiting", "since_ms"}


def doing(process: dict[str, Any]) -> str:
    """process: one of progress.read_processes."""
    if waiting := process.get("waiting"):
        return f"waits {since}for {waiting}" if (since := _since(process)) else f"waits for {waiting}"
    if process.get("evaluating", "") != "":
        return f"evaluates version {process['evaluating']}"
    if process.get("role") == "worker":
        failures = f", {process['failures']} failures so far" if process.get("failures") else ""
        return f"{process.get('in_flight', 0)} episodes in flight, {process.get('tokens_s', 0):.0f} tokens/s{failures}"
    if process.get("update"):
        return f"update {process['update']}"
    return ", ".join(f"{name} {number(value)}" for name, value in process.items() if name not in FIXED) or "works"


def _since(process: dict[str, Any]) -> str:
    seconds = time.time() - float(process.get("since_ms", 0)) / 1000
    return f"{seconds:.0f} s " if seconds >= 1 else ""


def happened(event: Event) -> str:
    """An event's fields in one line: an id by its beginning, a number by three digits."""
    return " ".join(f"{name}={_short(value)}" for name, value in event.fields.items() if name not in LEFT_OUT and value)


def _short(text: str) -> str:
    if re.fullmatch("[0-9a-f]{32}", text):
        return text[:8]
    return f"{float(text):.3g}" if re.fullmatch(r"\d*\.\d{4,}", text) else text[:60]


def number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
