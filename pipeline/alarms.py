"""What the newest update warns of: a sentence each, in `headrace status` and in the live picture.

a line of metrics.jsonl ──mismatch_alarm, skipped──▶ what is wrong, by how much, where to look
"""

from collections.abc import Mapping
from typing import Any


def alarms(line: Mapping[str, Any]) -> list[str]:
    """Of one update; {}: of none."""
    found = []
    if line.get("mismatch_alarm"):
        found.append(
            f"trainer and engines disagree: mismatch_kl {line['mismatch_kl']:.2g} nats a token, at most "
            f"{line['mismatch_max']:.2g}. See rollout.temperature, engines.args, model.dtype, the engines' versions; "
            "the trainer's log says which engine"
        )
    if skipped := line.get("skipped"):
        steps = "an optimizer step was" if skipped == 1 else f"{skipped} optimizer steps were"
        found.append(f"{steps} skipped in update {line['version']}: no finite gradient; the trainer's log says why")
    return found
