"""`headrace audit`: does everything that a run has left behind keep protocol.md's invariants, each by its name?

events.jsonl ─▶ Replay ───────────────────┐
metrics.jsonl, checkpoints ─▶ trained ────┼─▶ Findings ─▶ audit_report.py
Redis, if it is there ─▶ Snapshot ────────┘
"""

from typing import Any

import redis

from pipeline import jsonl, reports
from pipeline.audit_findings import Findings
from pipeline.audit_ledger import Snapshot, check_payloads, compare, look
from pipeline.audit_replay import Replay, whole_history
from pipeline.audit_trained import Trained, check_trained, read_trained
from pipeline.config import Config
from pipeline.errors import HeadraceError, OtherSchema


def audit(config: Config, redis_url: str | None = None) -> Findings:
    """Of one run, whether it is up or not. Raises HeadraceError without an archive, or for one that is no archive."""
    archive = config.folder / "events.jsonl"
    if not archive.is_file():
        raise HeadraceError(
            f"{archive}: no such file, and nothing to audit without it. `headrace up` writes it into the run's "
            "folder; of a run that was moved, bring the whole folder"
        )
    said, lines = read_trained(config), jsonl.read(archive)
    findings, found = Findings(), None
    try:
        with reports.ledger_of(str(config.folder), redis_url) as ledger:
            found = look(ledger, lines[-1]["id"] if lines else None)
            check_payloads(ledger, found, findings)
    except OtherSchema:
        raise
    except (HeadraceError, redis.RedisError) as error:
        findings.unchecked["payload"] = f"no ledger to look at: {error}"
    judge(config, said, lines, found, findings)
    return findings


def judge(
    config: Config, said: Trained, lines: list[dict[str, Any]], found: Snapshot | None, findings: Findings
) -> None:
    """Everything but the payloads. lines: of the archive; found: the ledger, if it could be asked."""
    if found:
        lines = lines + found.lines
    findings.checked["events"] = len(lines)
    history, losses = whole_history(lines)
    findings.notes += losses
    max_age_s, lease_s = config.buffers.max_age_s, config.buffers.lease_s
    replay = Replay(
        findings=findings,
        max_age_ms=round(1000 * max_age_s),
        lease_ms=round(1000 * lease_s),
        receipt=config.advantage.evidence == "receipt",
    )
    for event in history:
        replay.apply(event)
    if found:
        compare(found, replay, findings)
    batches = {int(line["buffer"]): line["entries"].split() for line in lines if line["kind"] == "consumed"}
    check_trained(said, findings, batches, config.run.total_steps)
    _check_the_end(config, said, findings, replay)


def _check_the_end(config: Config, said: Trained, findings: Findings, replay: Replay) -> None:
    total, version = config.run.total_steps, replay.version
    if replay.stopped:
        findings.notes.append(f"the run has stopped itself: {replay.stopped}")
    if said.finished:
        findings.expect("liveness", version == total, f"finished at version {version}, not {total}")
        if replay.receipt:
            what = f"finished with credits of {replay.credited} updates, not {total}"
            findings.expect("credited", replay.credited == total, what)
    else:
        findings.notes.append(f"the run is at version {version} of {total}: it has not finished")
