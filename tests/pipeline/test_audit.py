"""`headrace audit`: a clean run passes on both servers; a forged archive is found by the invariant that it breaks."""

import hashlib
import itertools
import json
from pathlib import Path

import fakeredis
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from pipeline import events, keys
from pipeline.audit import audit, judge
from pipeline.audit_findings import INVARIANTS, Findings
from pipeline.audit_ledger import check_payloads, compare, look
from pipeline.audit_replay import Replay
from pipeline.audit_trained import read_trained
from pipeline.cli import cli
from pipeline.config_file import load
from pipeline.errors import HeadraceError
from pipeline.ledger_types import Reservation
from tests.fixtures_ledger import ENGINE, TRAINER, Driver
from tests.pipeline.test_state_machine import LedgerMachine

numbers = itertools.count()

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
max_age_s = {max_age_s}
"""


@pytest.fixture(autouse=True)
def no_redis_of_the_environment(monkeypatch):
    monkeypatch.delenv("REDIS_URL", raising=False)


def new_config(folder: Path, name: str, max_age_s: float = 600):
    (folder / name).mkdir(parents=True, exist_ok=True)
    path = folder / name / "run.toml"
    path.write_text(RUN.format(folder=folder, name=name, max_age_s=max_age_s))
    return load(path)


def drive(d: Driver) -> None:
    """Three updates with everything that happens to entries: given back, lost, placed late, pulled forward."""
    a, b, c, straggler = (d.reserve() for _ in range(4))
    d.c.release(a.entry, "failed")
    d.finish(b)
    d.finish(c, outcome=0.0)
    d.c.consume(TRAINER, 0)
    d.publish()
    d.finish(d.reserve())
    d.finish(late := d.reserve())
    assert d.entry(late.entry)["buffer"] == "2", "the straggler's place is kept"
    d.c.release(straggler.entry, "retry")
    assert d.entry(late.entry)["buffer"] == "1", "pulled forward"
    d.c.consume(TRAINER, 1)
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


def violated(findings: Findings) -> set[str]:
    return {name for name, found in findings.violations.items() if found}


def look_at(d: Driver, config, lines) -> Findings:
    findings = Findings()
    found = look(d.c, lines[-1]["id"])
    check_payloads(d.c, found, findings)
    judge(config, read_trained(config), lines, found, findings)
    return findings


# -- a clean run


def test_a_clean_run_passes_and_every_invariant_was_checked(new_run, tmp_path):
    d = new_run(batch_size=2)
    config = new_config(tmp_path, d.run)
    drive(d)
    lines = archived(d, config)
    assert {"moved", "released", "placed", "consumed", "published", "checkpoint"} <= {line["kind"] for line in lines}
    d.fill_head()  # not archived yet: the audit reads on in the stream
    findings = look_at(d, config, lines)
    assert violated(findings) == set(), findings.violations
    assert all(findings.checked[name] for name in INVARIANTS), findings.checked
    assert findings.unchecked == {}


def test_a_redis_that_was_replaced_is_joined_ahead_and_clean(new_run, tmp_path):
    d = new_run(batch_size=2)
    config = new_config(tmp_path, d.run)
    drive(d)
    archived(d, config)
    for key in d.client.scan_iter(f"hr:{{{d.run}}}*"):
        d.client.delete(key)
    again = Driver(d.client, d.run, batch_size=2)  # joins at 0, as no trainer of this run would
    again.c.join("t1-a", 3)
    again.c.register_engine(ENGINE, 3)
    again.fill_head()
    again.c.consume("t1-a", 3)
    lines = archived(again, config)
    assert [line["kind"] for line in lines].count("created") == 2
    assert violated(look_at(again, config, lines)) == set()


def test_events_that_redis_lost_are_not_replayed(new_run, tmp_path):
    """A copy of the stream stands in for the file of a Redis that lost its last second."""
    d = new_run(batch_size=2)
    config = new_config(tmp_path, d.run)
    d.update()
    kept = d.everything()
    d.finish(d.reserve())
    d.c.consume(TRAINER, 1) or d.fill_head()
    d.c.consume(TRAINER, 1)
    archived(d, config)
    restore(d, kept)
    trainer = d.new_client()
    trainer.join("t1-a", 2)  # it has trained batch 1
    lines = archived(d, config)
    assert [line["kind"] for line in lines].count("lost") == 1
    findings = look_at(d, config, lines)
    assert violated(findings) == set(), findings.violations
    assert "Redis lost" in findings.notes[0]
    assert events.archive(d.client, d.run, config.folder / "events.jsonl") == 0, "a loss is noted once"


def restore(d: Driver, kept: dict) -> None:
    for key in d.client.scan_iter(f"hr:{{{d.run}}}*"):
        d.client.delete(key)
    for key, value in kept.items():
        if isinstance(value, dict):
            d.client.hset(key, mapping=value)
        elif value and isinstance(value[0][1], dict):
            for id, fields in value:
                d.client.xadd(key, fields, id=id)
        else:
            d.client.zadd(key, dict(value))


class Audited(LedgerMachine):
    """The ledger under everything that can go wrong; in the end its events are audited."""

    def teardown(self):
        super().teardown()
        found, findings = look(self.d.c, None), Findings()
        replay = Replay(findings=findings, max_age_ms=10**9, lease_ms=0)
        for line in found.lines:
            replay.apply(line)
        compare(found, replay, findings)
        check_payloads(self.d.c, found, findings)
        assert findings.clean, findings.violations


def test_whatever_goes_wrong_the_audit_of_a_ledger_that_is_right_is_clean(client, run):
    how = settings(max_examples=8, stateful_step_count=30, derandomize=True, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(lambda: Audited(client, f"{run}-{next(numbers)}"), settings=how)


# -- payload, and a ledger that is not where its events lead


def test_a_payload_that_is_missing_or_unowned_is_found(new_run, tmp_path):
    d = new_run(batch_size=2)
    config = new_config(tmp_path, d.run)
    drive(d)
    lines = archived(d, config)
    stream, id = min(d.stored_payloads())
    [(_, fields)] = d.client.xrange(keys.trajectories(d.run, stream), id, id)
    d.client.xdel(keys.trajectories(d.run, stream), id)
    findings = look_at(d, config, lines)
    assert violated(findings) == {"payload"}
    assert f"payload {id} of {stream} is missing" in findings.violations["payload"][0].what
    d.client.xadd(keys.trajectories(d.run, stream), fields)
    findings = look_at(d, config, lines)
    assert sorted(v.what.split()[-1] for v in findings.violations["payload"]) == ["missing", "unowned"]


def test_a_ledger_that_its_events_do_not_lead_to_is_found(new_run, tmp_path):
    d = new_run(batch_size=2)
    config = new_config(tmp_path, d.run)
    drive(d)
    lines = archived(d, config)
    d.client.zrem(keys.reserved(d.run), d.client.zrange(keys.reserved(d.run), 0, 0)[0])
    assert violated(look_at(d, config, lines)) == {"conservation"}
    d.client.hset(keys.run(d.run), "event", 7)
    assert violated(look_at(d, config, lines)) == {"conservation", "monotone"}


# -- forged archives


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """(config, lines of the archive) of a clean run."""
    with fakeredis.FakeRedis() as client:
        d = Driver(client, "forged", batch_size=2, max_staleness=1)
        config = new_config(tmp_path_factory.mktemp("runs"), "forged")
        drive(d)
        return config, archived(d, config)


def nth(lines, kind, number=0):
    return [i for i, line in enumerate(lines) if line["kind"] == kind][number]


def change(lines, kind, number=0, cut=False, **fields):
    """One event with other fields; cut: it is the last."""
    i = nth(lines, kind, number)
    return [*lines[:i], lines[i] | fields, *([] if cut else lines[i + 1 :])]


def until(lines, kind, number, *added):
    """The archive up to this event, then others."""
    head = lines[: nth(lines, kind, number) + 1]
    ms, _, sequence = head[-1]["id"].partition("-")
    return head + [{"id": f"{ms}-{int(sequence) + n}", "ms": head[-1]["ms"], **line} for n, line in enumerate(added, 1)]


def again(lines, event, number, **fields):
    i = nth(lines, event, number)
    return until(lines, event, number, {k: v for k, v in lines[i].items() if k not in ("id", "ms")} | fields)


def reserved(name, version=0):
    return {"kind": "reserved", "entry": name, "prompt": f"of {name}", "version": version, "deadline": version + 1}


def placed(name, buffer, version=0):
    named = {"kind": "placed", "entry": name, "prompt": f"of {name}", "version": version}
    return named | {"buffer": buffer, "oldest": version}


def of(lines, kind, number, field="entry"):
    return lines[nth(lines, kind, number)][field]


def too_stale(lines):
    """The whole life of an entry is forged, so that only its age when it is consumed tells."""
    entry = of(lines, "consumed", 2, "entries").split()[0]
    old = {"version": "0", "deadline": "1", "oldest": "0"}
    return [
        line | {name: old[name] for name in old.keys() & line.keys()} if line.get("entry") == entry else line
        for line in lines
    ]


def in_two_batches(lines):
    first, second = (of(lines, "consumed", n, "entries").split() for n in (0, 1))
    return change(lines, "consumed", 1, cut=True, entries=f"{first[0]} {second[1]}")


def published_too_late(lines):
    straggler, other = of(lines, "reserved", 3), "x"
    named = {"entry": straggler, "prompt": of(lines, "reserved", 3, "prompt")}
    batch = {"kind": "consumed", "buffer": 1, "entries": f"{straggler} {other}"}
    return until(lines, "consumed", 0, reserved(other), placed("", 1) | named, placed(other, 1), batch)


def swapped(lines):
    first, second = of(lines, "consumed", 1, "entries").split()
    return change(lines, "consumed", 1, cut=True, entries=f"{second} {first}")


def a_batch_of_one(lines):
    left, gone = of(lines, "consumed", 2, "entries").split()
    lines = change(lines, "consumed", 2, cut=True, entries=left)
    return [line for line in lines if line.get("entry") != gone]


def in_flight_for_ever(lines):
    noise = [{"kind": "engine", "ms": 1_000_000 + 10_000 * n} for n in range(1, 70)]
    return until(lines, "reserved", -1, *noise)


FORGED = [
    ("bound", lambda lines: change(lines, "placed", 2, oldest="0")),
    ("bound", lambda lines: change(lines, "placed", 2, version="0")),
    ("bound", lambda lines: change(lines, "placed", 0, cut=True, buffer="2")),
    ("bound", lambda lines: change(lines, "reserved", 4, cut=True, deadline="3")),
    ("bound", lambda lines: change(lines, "reserved", 0, cut=True, version="1", deadline="2")),
    ("bound", too_stale),
    ("capacity", lambda lines: until(lines, "placed", 1, reserved("x"), placed("x", 0))),
    ("soundness", lambda lines: until(lines, "reserved", 3, reserved("x"))),
    ("conservation", lambda lines: again(lines, "reserved", 0, prompt="another")),
    ("conservation", lambda lines: again(lines, "reserved", 0, entry="another")),
    ("conservation", lambda lines: again(lines, "placed", 0)),
    ("conservation", lambda lines: again(lines, "placed", 0, kind="released")),
    ("conservation", lambda lines: again(lines, "released", 0, kind="surplus")),
    ("conservation", lambda lines: again(lines, "released", 0, kind="dropped")),
    ("conservation", lambda lines: again(lines, "released", 0, kind="truncate")),
    ("conservation", lambda lines: change(lines, "released", 1, cut=True, prompt="another")),
    ("conservation", lambda lines: change(lines, "moved", 0, cut=True, **{"from": "1"})),
    ("conservation", lambda lines: change(lines, "consumed", 0, cut=True, entries="x y")),
    ("once", in_two_batches),
    ("order", published_too_late),
    ("order", swapped),
    ("order", lambda lines: change(lines, "checkpoint", 0, version="5")),
    ("monotone", lambda lines: change(lines, "published", 1, version="0")),
    ("monotone", lambda lines: change(lines, "published", 1, event="1")),
    ("monotone", lambda lines: change(lines, "joined", 0, head="4")),
    ("monotone", lambda lines: [*lines, lines[-10] | {"kind": "engine"}]),
    ("liveness", a_batch_of_one),
    ("liveness", in_flight_for_ever),
]


@pytest.mark.parametrize(("name", "forge"), FORGED)
def test_a_forged_archive_is_found_by_the_invariant_it_breaks(clean, tmp_path, name, forge):
    _, lines = clean
    config = new_config(tmp_path, "forged")
    forged = forge(lines)
    write_metrics(config, [line["entries"] for line in forged if line["kind"] == "consumed"])
    findings = Findings()
    judge(config, read_trained(config), lines, None, findings)
    assert violated(findings) - {"trained"} == set(), "the archive was clean"
    findings = Findings()
    judge(config, read_trained(config), forged, None, findings)
    assert violated(findings) == {name}, findings.violations
    first = findings.violations[name][0]
    assert first.what and (first.event or first.entry or first.buffer is not None)


def test_every_invariant_has_a_forgery():
    """But the two that are not about events: payload and trained have tests of their own."""
    assert {name for name, _ in FORGED} == set(INVARIANTS) - {"payload", "trained"}


def line_of(version, **fields):
    return {"version": version, "batch": "not this one", **fields}


@pytest.mark.parametrize(
    ("forge", "what"),
    [
        (lambda made: [*made[:1], made[1] | {"batch": "another"}, *made[2:]], "not the batch that"),
        (lambda made: [made[0], made[2]], "update 2 where 1 should be"),
        (lambda made: [made[0], *made], "update 0 where 1 should be"),
        (lambda made: [*made, line_of(3)], "an update without a batch"),
        (lambda made: made[:1], "1 updates in metrics.jsonl, at least 2 were made"),
    ],
)
def test_an_update_that_was_not_made_from_its_batch_is_found(clean, tmp_path, forge, what):
    _, lines = clean
    config = new_config(tmp_path, "forged")
    batches = [line["entries"] for line in lines if line["kind"] == "consumed"]
    write_metrics(config, batches)
    write_checkpoint(config, [batch.split() for batch in batches[:2]])
    path = config.folder / "metrics.jsonl"
    made = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in forge(made)))
    findings = Findings()
    judge(config, read_trained(config), lines, None, findings)
    assert violated(findings) == {"trained"}
    assert any(what in violation.what for violation in findings.violations["trained"])


def write_checkpoint(config, recent):
    folder = config.folder / "checkpoints" / "2"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"version": 2, "recent": recent}))


def test_a_checkpoint_that_remembers_other_batches_is_found(clean, tmp_path):
    _, lines = clean
    config = new_config(tmp_path, "forged")
    batches = [line["entries"] for line in lines if line["kind"] == "consumed"]
    write_metrics(config, batches)
    write_checkpoint(config, [batches[0].split(), ["x", "y"]])
    findings = Findings()
    judge(config, read_trained(config), lines, None, findings)
    assert [v.buffer for v in findings.violations["trained"]] == [1]


def test_a_run_that_says_it_has_finished_must_have_made_its_updates(clean, tmp_path):
    _, lines = clean
    config = new_config(tmp_path, "forged")
    write_metrics(config, [line["entries"] for line in lines if line["kind"] == "consumed"])
    (config.folder / "finished.json").write_text('{"updates": 3}')
    findings = Findings()
    judge(config, read_trained(config), lines, None, findings)
    assert findings.clean
    judge(config, read_trained(config), lines[: nth(lines, "published", 1)], None, findings := Findings())
    assert {"liveness"} <= violated(findings)


# -- what a person sees


def run_audit(config, *arguments):
    return CliRunner().invoke(cli, ["audit", str(config.folder), *arguments])


def test_the_report_names_every_invariant_and_the_exit_code_says_whether_all_hold(clean):
    config, lines = clean
    done = run_audit(config)
    assert done.exit_code == 0, done.output
    assert all(f"{name} " in done.output for name in INVARIANTS)
    assert "not checked:  payload: no ledger to look at" in done.output
    write_archive(config, swapped(lines))
    done = run_audit(config)
    assert done.exit_code == 1
    assert "order         VIOLATED  1 of" in done.output
    assert f"buffer 1, event {of(lines, 'consumed', 1, 'id')}" in done.output
    found = json.loads(run_audit(config, "--json").output)
    assert (found["clean"], found["run"]) == (False, "forged")
    order = next(row for row in found["invariants"] if row["name"] == "order")
    assert (order["ok"], order["violations"], order["first"][0]["buffer"]) == (False, 1, 1)
    write_archive(config, lines)


def write_archive(config, lines, end=""):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (config.folder / "events.jsonl").write_text(text + end)


def test_a_torn_last_line_is_no_event(clean):
    config, lines = clean
    write_archive(config, lines, end='{"id": "17960')
    assert audit(config).clean


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "no such file, and nothing to audit without it"),
        (lambda path: path.write_text("".join(path.read_text().splitlines(True)[4:])), "expected `created`"),
        (lambda path: path.write_text(path.read_text().replace('"oldest"', '"old"')), "an older headrace wrote this"),
        (lambda path: path.write_text("no JSON\n"), "mend or delete this line"),
    ],
)
def test_an_archive_that_cannot_be_replayed_is_an_error_that_says_why(clean, damage, said):
    config, lines = clean
    try:
        damage(config.folder / "events.jsonl")
        with pytest.raises(HeadraceError, match=said):
            audit(config)
    finally:
        write_archive(config, lines)
