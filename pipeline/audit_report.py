"""An audit as a person reads it, a line an invariant, and as a program does.

bound         ok        2,048 checked
once          VIOLATED  1 of 512
              consumed in buffer 3 already: entry 5d0c…, buffer 4, event 1764500000123-0
"""

from dataclasses import asdict
from typing import Any

from pipeline.audit_findings import INVARIANTS, Findings, Violation

SHOWN = 3  # violations of one invariant


def as_dict(run: str, findings: Findings) -> dict[str, Any]:
    return {
        "run": run,
        "clean": findings.clean,
        "events": findings.checked["events"],
        "invariants": [
            {
                "name": name,
                "ok": not findings.violations[name],
                "checked": findings.checked[name],
                "violations": len(findings.violations[name]),
                "first": [asdict(violation) for violation in findings.violations[name][:SHOWN]],
            }
            for name in INVARIANTS
        ],
        "not_checked": findings.unchecked,
        "notes": findings.notes,
    }


def text(run: str, findings: Findings) -> str:
    lines = [f"run {run}: {findings.checked['events']:,} events"]
    for name in INVARIANTS:
        checked, violations = findings.checked[name], findings.violations[name]
        if violations:
            lines.append(f"{name:<13} VIOLATED  {len(violations):,} of {checked:,}")
            lines += [f"{'':<13} {_sentence(violation)}" for violation in violations[:SHOWN]]
        elif checked:
            lines.append(f"{name:<13} ok        {checked:,} checked")
        else:
            lines.append(f"{name:<13} -         nothing to check")
    lines += [f"not checked:  {name}: {why}" for name, why in findings.unchecked.items()]
    return "\n".join(lines + [f"note:         {note}" for note in findings.notes])


def _sentence(violation: Violation) -> str:
    places = {"entry": violation.entry, "buffer": violation.buffer, "event": violation.event}
    where = ", ".join(f"{name} {value}" for name, value in places.items() if value not in ("", None))
    return f"{violation.what}: {where}" if where else violation.what
