"""A forged archive is found by the invariant that it breaks, and an update by the batch that it was not made from."""

import json

import pytest

from pipeline.audit import judge
from pipeline.audit_findings import INVARIANTS, Findings
from pipeline.audit_trained import read_trained
from tests.pipeline.audited_run import a_clean_run, change, new_config, nth, of, violated, write_metrics


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """(config, lines of the archive) of a clean run."""
    return a_clean_run(tmp_path_factory.mktemp("runs"))


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


def backwards(lines):
    return json.dumps(json.loads(of(lines, "credited", 1, "prompts"))[::-1])


def out_before_it_was_credited(lines):
    i = nth(lines, "credited", 1)
    lines = [*lines[:i], *lines[i + 1 :]]
    return lines[: nth(lines, "published", 1) + 1]


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
    ("credited", lambda lines: again(lines, "credited", 0)),
    ("credited", lambda lines: again(lines, "credited", 0, version="1")),
    ("credited", lambda lines: change(lines, "credited", 1, cut=True, prompts='["p99","p98"]')),
    ("credited", lambda lines: change(lines, "credited", 1, cut=True, prompts=backwards(lines))),
    ("credited", lambda lines: change(lines, "joined", 0, cut=True, credited="1")),
    ("credited", out_before_it_was_credited),
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
