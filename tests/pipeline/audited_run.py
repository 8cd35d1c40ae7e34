"""What the tests of `headrace audit` have in common: a run of three updates, the folder it leaves, and its lines.

drive(d) ─▶ archived(d, config) ─▶ events.jsonl, metrics.jsonl        change(lines, kind, …): one event is forged
"""

import hashlib
import json
from pathlib import Path

import fakeredis

from pipeline import events
from pipeline.audit_findings import Findings
from pipeline.config_file import load
from pipeline.ledger_types import Reservation
from tests.fixtures_ledger import TRAINER, Driver

RUN = """
[run]
name = "{name}"
folder = "{folder}"
total_steps = 3
[model]
path = "model"
[data]
tasks.chain_sum = {{ min_terms = 2 }}
[buffers]
batch_size = 2
max_staleness = 1
[advantage]
evidence = "receipt"
"""
SETTINGS = {"batch_size": 2, "max_staleness": 1, "evidence": "receipt"}


def new_config(folder: Path, name: str):
    (folder / name).mkdir(parents=True, exist_ok=True)
    path = folder / name / "run.toml"
    path.write_text(RUN.format(folder=folder, name=name))
    return load(path)


def drive(d: Driver) -> None:
    """Three updates with everything that happens to entries: given back, lost, placed late, pulled forward."""
    a, b, c, straggler = (d.reserve() for _ in range(4))
    d.c.release(a.entry, "failed")
    d.finish(b)
    d.finish(c, outcome=0.0)
    d.credit(d.c.consume(TRAINER, 0))
    d.publish()
    d.finish(d.reserve())
    d.finish(late := d.reserve())
    assert d.entry(late.entry)["buffer"] == "2", "the straggler's place is kept"
    d.c.release(straggler.entry, "retry")
    assert d.entry(late.entry)["buffer"] == "1", "pulled forward"
    d.credit(d.c.consume(TRAINER, 1))
    d.c.checkpoint(TRAINER, 2)
    d.publish()
    d.update()
    assert isinstance(d.reserve(), Reservation)


def archived(d: Driver, config) -> list[dict]:
    """The run's folder as its processes leave it; returns the archive's lines."""
    events.archive(d.client, d.run, config.folder / "events.jsonl")
    lines = [json.loads(line) for line in (config.folder / "events.jsonl").read_text().splitlines()]
    write_metrics(config, [line["entries"] for line in lines if line["kind"] == "consumed"])
    return lines


def write_metrics(config, batches: list[str]) -> None:
    made = [{"version": v, "batch": hashlib.sha256(b.encode()).hexdigest()[:16]} for v, b in enumerate(batches)]
    (config.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made))


def write_archive(config, lines, end=""):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (config.folder / "events.jsonl").write_text(text + end)


def a_clean_run(folder: Path):
    """(config, lines of the archive), by fakeredis; the folder is all that is left of it."""
    with fakeredis.FakeRedis() as client:
        d = Driver(client, "forged", **SETTINGS)
        config = new_config(folder, "forged")
        drive(d)
        return config, archived(d, config)


def violated(findings: Findings) -> set[str]:
    return {name for name, found in findings.violations.items() if found}


def nth(lines, kind, number=0):
    return [i for i, line in enumerate(lines) if line["kind"] == kind][number]


def change(lines, kind, number=0, cut=False, **fields):
    """One event with other fields; cut: it is the last."""
    i = nth(lines, kind, number)
    return [*lines[:i], lines[i] | fields, *([] if cut else lines[i + 1 :])]


def of(lines, kind, number, field="entry"):
    return lines[nth(lines, kind, number)][field]
