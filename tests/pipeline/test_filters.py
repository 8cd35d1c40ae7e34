"""Groups that teach nothing are filtered; the few that keep the trainer waiting are given back, or cut short."""

import pytest

from pipeline import keys
from pipeline.coordinator import Filtered, Placed, Refused


def test_a_group_whose_members_are_all_alike_is_filtered_and_another_prompt_is_drawn(new_run):
    d = new_run(batch_size=1, max_staleness=0, group_size=2, filter_metric="score")
    r = d.reserve()
    assert d.finish(r, [1.0, 1.0]) == Filtered()
    assert d.entry(r.entry)["state"] == "FILTERED"
    assert (d.buffer(0).state, d.buffer(0).occupied, d.buffer(0).due) == ("PENDING", 0, 0)
    assert (d.stored_payloads(), d.c.status()["filtered"]) == (set(), 1)
    assert d.finish(d.reserve(), [1.0, 0.0]) == Placed(0)


def test_a_filtered_group_was_scored_so_its_prompt_learns(new_run):
    d = new_run(prompts=1, batch_size=1, group_size=2, filter_metric="score")
    r = d.reserve()
    d.finish(r, [1.0, 1.0])
    assert float(d.prompt(r.prompt)["value"]) == 6 / 10
    assert d.reserve().value == 6 / 10


def test_a_filtered_group_sent_again_is_filtered_again_and_counted_once(new_run):
    d = new_run(group_size=2, filter_metric="score")
    r = d.reserve()
    assert d.finish(r, [0.0, 0.0]) == Filtered()
    before = d.prompt(r.prompt)
    assert d.finish(r, [0.0, 0.0]) == Filtered()
    assert d.finish(r, [0.0, 0.0], client=d.new_client()) == Filtered()
    assert (d.prompt(r.prompt), d.c.status()["filtered"], d.stored_payloads()) == (before, 1, set())
    assert d.reserve(entry=r.entry) == Refused("GONE")


@pytest.mark.parametrize(
    ("metric", "first", "second", "filtered"),
    [
        ("score", {"reward": 0.5}, {"reward": 0.5}, True),
        ("score", {"reward": 0.5, "metrics": {"score": 1.0}}, {"reward": 0.5, "metrics": {"score": 2.0}}, False),
        ("score", {"reward": 1.0, "metrics": {"score": 1.0}}, {"reward": 2.0, "metrics": {"score": 1.0}}, True),
        ("acc", {"outcome": 1.0, "reward": 1.0}, {"outcome": 1.0, "reward": 2.0}, True),
        ("acc", {"outcome": 1.0, "metrics": {"acc": 1.0}}, {"outcome": 1.0, "metrics": {"acc": 0.0}}, False),
        ("seq_reward", {"outcome": 0.0, "reward": 3.0}, {"outcome": 1.0, "reward": 3.0}, True),
        ("seq_final_reward", {"outcome": 1.0, "reward": 3.0}, {"outcome": 1.0, "reward": 4.0}, False),
        (None, {"reward": 0.5}, {"reward": 0.5}, False),
    ],
)
def test_what_is_compared_is_the_metric_that_the_run_names(new_run, names, metric, first, second, filtered):
    d = new_run(group_size=2, filter_metric=metric)
    r = d.reserve()
    group = [names.trajectory(r, **{"member": m, **changes}) for m, changes in enumerate((first, second))]
    assert d.c.occupy(r.entry, group) == (Filtered() if filtered else Placed(0))


def test_a_group_of_one_is_never_filtered(new_run):
    d = new_run(group_size=1, filter_metric="acc")
    assert d.finish(d.reserve()) == Placed(0)


def test_a_run_in_which_all_groups_are_filtered_stops_and_says_why(new_run):
    d = new_run(group_size=2, filter_metric="acc", max_consecutive_filtered=3)
    for _ in range(2):
        d.finish(d.reserve(), [1.0, 1.0])
    assert d.finish(d.reserve(), [1.0, 0.0]) == Placed(0)
    for _ in range(3):
        assert d.c.status()["stopped"] == ""
        assert d.finish(d.reserve(), [0.0, 0.0]) == Filtered()
    assert "3 groups in a row were filtered" in d.c.status()["stopped"]
    assert "acc" in d.c.status()["stopped"]
    assert d.reserve() == Refused("PAUSED")
    d.c.resume()
    assert d.finish(d.reserve(), [0.0, 0.0]) == Filtered()
    assert d.c.status()["stopped"] == ""


# -- the proactive filter: η = 0, B = 2, one of two is finished, the other takes its time -----------------------------


def straggler(new_run, **settings):
    rules = {"batch_size": 2, "max_staleness": 0, "proactive": "retry", "proactive_patience_s": 10, "lease_s": 600}
    d = new_run(**(rules | settings))
    slow, quick = d.reserve(), d.reserve()
    d.finish(quick)
    return d, slow


def test_the_last_entry_that_a_waiting_trainer_lacks_is_given_to_a_fresh_worker(new_run, names):
    d, slow = straggler(new_run)
    assert d.c.consume(names.trainer, 0) is None
    d.ms += 10_000
    assert d.c.reap() == [slow.entry]
    assert d.c.renew(names.worker, [slow.entry]).cancelled == (slow.entry,)
    assert d.finish(slow) == Refused("GONE")
    again = d.reserve(worker="w1-a")
    assert (again.prompt, again.attempt, again.version) == (slow.prompt, 2, 0)
    assert d.finish(again) == Placed(0)
    assert d.c.status()["released"] == {"retry": 1}
    assert len(d.c.consume(names.trainer, 0).refs) == 2


def test_nobody_is_given_back_while_the_trainer_does_not_wait(new_run, names):
    d, slow = straggler(new_run)
    d.ms += 60_000
    assert d.c.reap() == []
    d.c.consume(names.trainer, 0)
    assert d.c.reap() == [slow.entry]


def test_nobody_is_given_back_before_all_of_the_few_have_run_for_patience(new_run, names):
    d = new_run(batch_size=3, max_staleness=0, proactive="retry", proactive_patience_s=10, lease_s=600)
    first, quick = d.reserve(), d.reserve()
    d.finish(quick)
    d.ms += 9_000
    second = d.reserve()
    d.c.consume(names.trainer, 0)
    d.ms += 9_000
    assert d.c.reap() == []
    d.ms += 1_000
    assert d.c.reap() == [first.entry, second.entry]


def test_more_than_a_few_are_waited_for(new_run, names):
    d, slow = straggler(new_run, batch_size=3, proactive_threshold=1)
    third = d.reserve()
    d.c.consume(names.trainer, 0)
    d.ms += 60_000
    assert d.c.reap() == []
    d.finish(third)
    assert d.c.reap() == [slow.entry]


def test_a_head_that_a_fresh_entry_may_fill_is_not_blocked(new_run, names):
    d, slow = straggler(new_run, batch_size=3)
    d.c.consume(names.trainer, 0)
    d.ms += 60_000
    assert d.c.reap() == []  # one place is open
    another = d.reserve()
    d.ms += 60_000
    assert d.c.reap() == [slow.entry, another.entry]


def test_a_head_for_which_no_prompt_is_left_is_blocked(new_run, names):
    d = new_run(prompts=1, batch_size=2, max_staleness=0, proactive="retry", proactive_patience_s=10, lease_s=600)
    slow = d.reserve()
    assert d.reserve() == Refused("NO_PROMPT")
    d.c.consume(names.trainer, 0)
    d.ms += 10_000
    assert d.c.reap() == [slow.entry]


def test_the_most_urgent_are_given_back_and_no_more_than_head_needs(new_run, names):
    """η = 1, B = 2: head lacks one; of four in flight, the one with the first deadline goes."""
    d = new_run(batch_size=2, max_staleness=1, proactive="retry", proactive_patience_s=10, lease_s=600)
    d.c.register_engine("old", 0)
    d.fill_head()
    d.finish(d.reserve())
    urgent = d.reserve(engine="old")
    d.c.consume(names.trainer, 0)
    d.publish()
    later = d.reserve_all()
    assert (urgent.deadline, [r.deadline for r in later]) == (1, [2, 2])
    assert d.c.consume(names.trainer, 1) is None
    d.ms += 10_000
    assert d.c.reap() == [urgent.entry]
    assert {d.entry(r.entry)["state"] for r in later} == {"RESERVED"}


def test_a_prompt_that_keeps_the_trainer_waiting_is_tried_max_attempts_times(new_run, names):
    d = new_run(prompts=1, batch_size=1, max_staleness=0, proactive="retry", max_attempts=2, lease_s=600)
    d.c.consume(names.trainer, 0)
    for attempt in (1, 2):
        assert d.reserve().attempt == attempt
        d.ms += 30_000
        assert len(d.c.reap()) == 1
    assert d.c.status()["prompts"]["quarantined"] == 1
    assert "quarantine" in d.c.status()["stopped"]


def test_truncate_tells_the_worker_to_finish_with_what_it_has(new_run, names):
    d, slow = straggler(new_run, proactive="truncate")
    d.c.consume(names.trainer, 0)
    assert d.c.renew(names.worker, [slow.entry]).truncate == ()
    d.ms += 10_000
    assert d.c.reap() == []
    for _ in range(2):
        commands = d.c.renew(names.worker, [slow.entry])
        assert (commands.truncate, commands.cancelled) == ((slow.entry,), ())
        assert d.c.reap() == []
    assert d.finish(slow, finish_reason="truncated") == Placed(0)
    assert d.c.renew(names.worker, [slow.entry]).truncate == ()
    assert [e.fields["entry"] for e in d.c.wait("0", 0) if e.kind == "truncate"] == [slow.entry]


def test_who_does_not_finish_for_another_patience_is_given_back(new_run, names):
    d, slow = straggler(new_run, proactive="truncate")
    d.c.consume(names.trainer, 0)
    d.ms += 10_000
    d.c.reap()
    d.ms += 9_999
    assert d.c.reap() == []
    d.ms += 1
    assert d.c.reap() == [slow.entry]
    assert d.finish(slow) == Refused("GONE")
    assert d.reserve(worker="w1-a").prompt == slow.prompt
    assert d.client.hget(keys.counters(d.run), "released:retry") == b"1"
