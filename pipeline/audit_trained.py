"""What the trainer trained, against what the ledger handed out: every update from its own batch, once, none skipped.

consumed 12: e7 e3 …  ── sha256 ──▶ 9f3c…  =  "batch" of line 12 of metrics.jsonl
checkpoints/15: recent                      =  the newest batches before 15
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from pipeline import jsonl
from pipeline.audit_findings import Findings

DIGITS = 16


def check_trained(folder: Path, findings: Findings, batches: Mapping[int, list[str]], made: int) -> None:
    """batches: buffer -> entries as they were handed out last. made: updates that must be there, or 0."""
    lines = jsonl.read(folder / "metrics.jsonl")
    state = _newest_checkpoint(folder / "checkpoints")
    expected = max(made, state["version"] if state else 0)  # a trainer that came back writes later ones again
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
            same = line["batch"] == _digest(batch)
            findings.expect("trained", same, "not the batch that the ledger handed out", buffer=version)
            for entry in batch:
                before = trained.setdefault(entry, version)
                findings.expect("once", before == version, f"trained in update {before} already", entry, version)
    if state:
        first = state["version"] - len(state["recent"])
        for number, recent in enumerate(state["recent"], first):
            same = recent == batches.get(number)
            findings.expect("trained", same, f"checkpoint {state['version']} remembers another batch", buffer=number)


def _newest_checkpoint(folder: Path) -> dict | None:
    states = [json.loads(path.read_text()) for path in folder.glob("[0-9]*/state.json")]
    return max(states, key=lambda state: state["version"], default=None)


def _digest(entries: list[str]) -> str:
    """As trainer/record.py writes it: over the entries in the batch's order, one space between them."""
    return hashlib.sha256(" ".join(entries).encode()).hexdigest()[:DIGITS]
