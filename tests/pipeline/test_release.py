"""Release: a failure is no reward 0; the prompt is tried again, and one that keeps failing is set aside."""

import pytest

from pipeline.coordinator import Refused


def test_an_entry_given_back_frees_its_place_and_leaves_no_evidence(new_run):
    d = new_run()
    taken = d.reserve_all()
    before = d.prompt(taken[0].prompt)["alpha"]
    assert d.c.release(taken[0].entry, "failed")
    assert not d.c.release(taken[0].entry, "failed")
    assert d.prompt(taken[0].prompt)["alpha"] == before
    assert d.reserve().prompt == taken[0].prompt
    assert d.c.status()["released"] == {"failed": 1}


def test_a_placed_entry_cannot_be_released(new_run):
    d = new_run()
    r = d.reserve()
    d.finish(r)
    assert not d.c.release(r.entry, "failed")
    assert d.buffer(0).occupied == 1


def test_an_unknown_reason_is_refused(new_run):
    d = new_run()
    with pytest.raises(ValueError, match="failed, retry, cancelled, lost"):
        d.c.release(d.reserve().entry, "bored")


@pytest.mark.parametrize(("reason", "limit"), [("failed", 3), ("retry", 3), ("lost", 5)])
def test_a_prompt_that_keeps_failing_goes_into_quarantine(new_run, reason, limit):
    d = new_run(max_attempts=3, max_lost=5)
    prompt = None
    for attempt in range(1, limit + 1):
        r = d.reserve()
        assert r.attempt == attempt
        assert prompt in (None, r.prompt)
        prompt = r.prompt
        d.c.release(r.entry, reason)
    assert d.reserve().prompt != prompt
    assert [p["id"] for p in d.c.prompts() if p["state"] == "quarantined"] == [prompt]


def test_a_finished_trajectory_clears_the_failures_of_its_prompt(new_run):
    d = new_run(prompts=1, max_attempts=2)
    for _ in range(3):
        d.c.release(d.reserve().entry, "failed")
        d.finish(d.reserve())
    assert d.c.status()["prompts"]["quarantined"] == 0


def test_cancelled_counts_toward_nothing(new_run):
    d = new_run(prompts=1, max_attempts=2)
    for _ in range(5):
        r = d.reserve()
        assert r.attempt == 1
        d.c.release(r.entry, "cancelled")


def test_the_run_stops_when_every_prompt_is_in_quarantine(new_run):
    d = new_run(prompts=1, max_attempts=1)
    d.c.release(d.reserve().entry, "failed")
    assert "quarantine" in d.c.status()["stopped"]
    assert d.reserve() == Refused("PAUSED")


def test_the_run_stops_after_many_failures_in_a_row_and_resumes_by_hand(new_run):
    d = new_run(max_consecutive_failures=3)
    for _ in range(2):
        d.c.release(d.reserve().entry, "failed")
    d.finish(d.reserve())
    for _ in range(3):
        assert d.c.status()["stopped"] == ""
        d.c.release(d.reserve().entry, "failed")
    assert "3 failures in a row" in d.c.fields()["stopped"]
    assert [e.fields["reason"] for e in d.c.wait("0", 0) if e.kind == "stopped"] == [d.c.fields()["stopped"]]
    d.c.resume()
    assert d.reserve().version == 0


def test_a_run_that_stops_after_many_failures_names_the_last_one(new_run):
    d = new_run(max_consecutive_failures=2, max_attempts=1)
    d.c.release(d.reserve().entry, "failed", "the tool did not answer")
    d.c.release(d.reserve().entry, "failed", "KeyError: 'answer'\n" + "x" * 999)
    stopped = d.c.fields()["stopped"]
    assert "the last one: KeyError: 'answer' xxx" in stopped and "`headrace up` goes on" in stopped
    assert len(stopped) < 600, "of a reason, no more than a person reads"
    assert "the tool did not answer" not in stopped
    quarantined = [e.fields["reason"] for e in d.c.wait("0", 0) if e.kind == "quarantined"]
    assert quarantined[0] == "failed 1 times; the last one: the tool did not answer"


def test_resume_gives_prompts_in_quarantine_a_new_chance(new_run):
    d = new_run(prompts=2, max_attempts=1, max_lost=1)
    d.c.release(d.reserve().entry, "failed")
    d.c.release(d.reserve().entry, "lost")
    assert "`headrace up` goes on" in d.c.status()["stopped"]
    for _ in range(2):  # twice is once
        d.c.resume()
        assert d.c.status()["prompts"] == {"idle": 2, "in flight": 0, "quarantined": 0}
        assert d.c.status()["stopped"] == ""
    assert [d.reserve().attempt for _ in range(2)] == [1, 1]
