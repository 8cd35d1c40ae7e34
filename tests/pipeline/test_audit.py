"""`headrace audit` of runs on both servers: what is right is clean, and a ledger that is not where its events lead."""

import itertools

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from pipeline import events, keys
from pipeline.audit import judge
from pipeline.audit_findings import INVARIANTS, Findings
from pipeline.audit_ledger import check_payloads, compare, look
from pipeline.audit_replay import Replay
from pipeline.audit_trained import read_trained
from tests.fixtures_ledger import ENGINE, TRAINER, Driver
from tests.pipeline.audited_run import SETTINGS, archived, drive, new_config, violated
from tests.pipeline.test_state_machine import LedgerMachine

numbers = itertools.count()


def look_at(d: Driver, config, lines) -> Findings:
    findings = Findings()
    found = look(d.c, lines[-1]["id"])
    check_payloads(d.c, found, findings)
    judge(config, read_trained(config), lines, found, findings)
    return findings


# -- a clean run


def test_a_clean_run_passes_and_every_invariant_was_checked(new_run, tmp_path):
    d = new_run(**SETTINGS)
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
    d = new_run(**SETTINGS)
    config = new_config(tmp_path, d.run)
    drive(d)
    archived(d, config)
    for key in d.client.scan_iter(f"hr:{{{d.run}}}*"):
        d.client.delete(key)
    again = Driver(d.client, d.run, **SETTINGS)  # joins at 0, as no trainer of this run would
    again.c.join("t1-a", 3)
    again.c.register_engine(ENGINE, 3)
    again.fill_head()
    again.c.consume("t1-a", 3)
    lines = archived(again, config)
    assert [line["kind"] for line in lines].count("created") == 2
    assert violated(look_at(again, config, lines)) == set()


def test_evidence_that_redis_lost_for_good_is_noted(new_run, tmp_path):
    d = new_run(**SETTINGS)
    config = new_config(tmp_path, d.run)
    drive(d)
    d.new_client().join("t1-a", 8)  # it remembers the credits of updates 5 to 7
    findings = look_at(d, config, archived(d, config))
    assert violated(findings) == set(), findings.violations
    assert "the evidence of updates 3 to 4 is gone with what Redis lost" in findings.notes


def test_events_that_redis_lost_are_not_replayed(new_run, tmp_path):
    """A copy of the stream stands in for the file of a Redis that lost its last second."""
    d = new_run(**SETTINGS)
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
        receipt = self.model.rules.evidence == "receipt"
        replay = Replay(findings=findings, max_age_ms=10**9, lease_ms=0, receipt=receipt)
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
    d = new_run(**SETTINGS)
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
    d = new_run(**SETTINGS)
    config = new_config(tmp_path, d.run)
    drive(d)
    lines = archived(d, config)
    d.client.zrem(keys.reserved(d.run), d.client.zrange(keys.reserved(d.run), 0, 0)[0])
    assert violated(look_at(d, config, lines)) == {"conservation"}
    d.client.hset(keys.run(d.run), "event", 7)
    assert violated(look_at(d, config, lines)) == {"conservation", "monotone"}
