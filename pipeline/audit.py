"""`headrace audit`: does everything that a run has left behind keep protocol.md's invariants, each by its name?

events.jsonl ─▶ Replay ───────────────────┐
metrics.jsonl, checkpoints ─▶ trained ────┼─▶ Findings ─▶ audit_report.py
Redis, if it is there ─▶ Snapshot ────────┘
"""

from typing import Any

import redis

from pipeline import jsonl, reports, summary
from pipeline.audit_findings import Findings
from pipeline.audit_ledger import Snapshot, check_payloads, compare, look
from pipeline.audit_replay import Replay, whole_history
from pipeline.audit_trained import check_trained
from pipeline.config import Config
from pipeline.errors import HeadraceError


def audit(config: Config, redis_url: str | None = None) -> Findings:
    """Of one run, whether it is up or not. Raises HeadraceError without an archive, or for one that is no archive."""
    archive = config.folder / "events.jsonl"
    if not archive.is_file():
        raise HeadraceError(
            f"{archive}: no such file, and nothing to audit without it. `headrace up` writes it into the run's "
            "folder; of a run that was moved, bring the whole folder"
        )
    lines, findings, found = jsonl.read(archive), Findings(), None
    try:
        with reports.ledger_of(str(config.folder), redis_url) as ledger:
            found = look(ledger, lines[-1]["id"] if lines else None)
            check_payloads(ledger, found, findings)
    except (HeadraceError, redis.RedisError) as error:
        findings.unchecked["payload"] = f"no ledger to look at: {error}"
    judge(config, lines, found, findings)
    return findings


def judge(config: Config, lines: list[dict[str, Any]], found: Snapshot | None, findings: Findings) -> None:
    """Everything but the payloads. lines: of the archive; found: the ledger, if it could be asked."""
    if found:
        lines = lines + found.lines
    findings.checked["events"] = len(lines)
    history, losses = whole_history(lines)
    findings.notes += losses
    buffers = config.buffers
    replay = Replay(findings, round(1000 * buffers.max_age_s), round(1000 * buffers.lease_s))
    for event in history:
        replay.apply(event)
    if found:
        compare(found, replay, findings)
    batches = {int(line["buffer"]): line["entries"].split() for line in lines if line["kind"] == "consumed"}
    check_trained(config.folder, findings, batches, _updates_made(config, findings, replay))


def _updates_made(config: Config, findings: Findings, replay: Replay) -> int:
    """What metrics.jsonl must hold at least. A run that says it has finished must have made all of its updates."""
    if replay.stopped:
        findings.notes.append(f"the run has stopped itself: {replay.stopped}")
    total, version = config.run.total_steps, replay.version
    if not summary.is_finished(config):
        findings.notes.append(f"the run is at version {version} of {total}: it has not finished")
        return 0
    findings.expect("liveness", version == total, f"finished at version {version}, not {total}")
    return total
