"""What the trainer trained, against what the ledger handed out: every update from its own batch, once, none skipped.

consumed 12: e7 e3 …  ── sha256 ──▶ 9f3c…  =  "batch" of line 12 of metrics.jsonl
checkpoints/15: recent                      =  the newest batches before 15
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline import jsonl, summary
from pipeline.audit_findings import Findings
from pipeline.config import Config
from pipeline.ledger_types import batch_digest


@dataclass(frozen=True)
class Trained:
    """What the trainer says that it has done."""

    finished: bool
    checkpoint: dict[str, Any] | None  # state.json of the newest one
    updates: list[dict[str, Any]]  # lines of metrics.jsonl


def read_trained(config: Config) -> Trained:
    """Read before the ledger: of a run that goes on, the ledger must not be behind its trainer."""
    states = config.folder.glob("checkpoints/[0-9]*/state.json")
    newest = max(states, key=lambda path: int(path.parent.name), default=None)
    state = newest and json.loads(newest.read_text())
    return Trained(summary.is_finished(config), state, jsonl.read(config.folder / "metrics.jsonl"))


def check_trained(said: Trained, findings: Findings, batches: Mapping[int, list[str]], total: int) -> None:
    """batches: buffer -> entries as they were handed out last; total: the updates of a finished run."""
    lines, state = said.updates, said.checkpoint
    # of updates behind the newest checkpoint, a trainer that came back writes the lines again
    expected = total if said.finished else state["version"] if state else 0
    found = len(lines)
    findings.expect("trained", found >= expected, f"{found} updates in metrics.jsonl, at least {expected} were made")
    trained: dict[str, int] = {}
    for number, line in enumerate(lines):
        version = line["version"]
        if not findings.expect("trained", version == number, f"update {version} where {number} should be"):
            return
        if (batch := batches.get(version)) is None:
            findings.expect("trained", False, "an update without a batch from the ledger", buffer=version)
        elif "batch" not in line:
            findings.unchecked["trained"] = "updates that do not name their batch"
        else:
            same = line["batch"] == batch_digest(batch)
            findings.expect("trained", same, "not the batch that the ledger handed out", buffer=version)
            for entry in batch:
                before = trained.setdefault(entry, version)
                findings.expect("once", before == version, f"trained in update {before} already", entry, version)
    if state:
        first = state["version"] - len(state["recent"])
        for number, recent in enumerate(state["recent"], first):
            same = recent == batches.get(number)
            findings.expect("trained", same, f"checkpoint {state['version']} remembers another batch", buffer=number)
