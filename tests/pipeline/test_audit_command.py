"""`headrace audit` as a person meets it: what it says, its exit code, and what it cannot read."""

import json

import pytest

from pipeline.audit import audit
from pipeline.audit_findings import INVARIANTS
from pipeline.errors import HeadraceError
from tests.pipeline.audited_run import a_clean_run, change, of, write_archive


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """(config, lines of the archive) of a clean run."""
    return a_clean_run(tmp_path_factory.mktemp("runs"))


def test_the_report_names_every_invariant_and_the_exit_code_says_whether_all_hold(headrace, clean):
    config, lines = clean
    code, out, _ = headrace("audit", config.folder)
    assert code == 0, out
    assert all(f"{name} " in out for name in INVARIANTS)
    assert "not checked:  payload: no ledger to look at" in out
    first, second = of(lines, "consumed", 1, "entries").split()
    write_archive(config, change(lines, "consumed", 1, cut=True, entries=f"{second} {first}"))
    code, out, _ = headrace("audit", config.folder)
    assert code == 1
    assert "order         VIOLATED  1 of" in out
    assert f"buffer 1, event {of(lines, 'consumed', 1, 'id')}" in out
    found = json.loads(headrace("audit", config.folder, "--json")[1])
    assert (found["clean"], found["run"]) == (False, "forged")
    order = next(row for row in found["invariants"] if row["name"] == "order")
    assert (order["ok"], order["violations"], order["first"][0]["buffer"]) == (False, 1, 1)
    write_archive(config, lines)


@pytest.fixture
def no_redis_of_the_environment(monkeypatch):
    monkeypatch.delenv("REDIS_URL", raising=False)


def test_a_torn_last_line_is_no_event(clean, no_redis_of_the_environment):
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
def test_an_archive_that_cannot_be_replayed_is_an_error_that_says_why(clean, no_redis_of_the_environment, damage, said):
    config, lines = clean
    try:
        damage(config.folder / "events.jsonl")
        with pytest.raises(HeadraceError, match=said):
            audit(config)
    finally:
        write_archive(config, lines)
