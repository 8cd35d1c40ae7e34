"""Occupy gives a finished entry the earliest place that leaves all the others placeable."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline import keys
from pipeline.coordinator import Placed, Refused, Surplus
from pipeline.errors import BadTrajectory


def send(d, r, worker, payload):
    """One MULTI [XADD 77-0, occupy] as it goes over the wire; the transition's whole reply."""
    stream = keys.trajectories(d.run, worker)
    args = [d.ms, 0, 0, 0, r.entry, worker, r.prompt, 0, 0, "77-0", "1.0"]
    occupy = ("occupy", [*keys.fixed(d.run), keys.entry(d.run, r.entry), stream], args)
    with d.acting("worker"):
        return d.c._ledger.scripts.run_after([("XADD", stream, "77-0", "payload", payload)], *occupy)[1]


def test_a_fresh_entry_leaves_the_place_that_an_older_one_still_needs(new_run, names):
    d = new_run(batch_size=1, max_staleness=1)
    d.c.register_engine("old", 0)
    d.fill_head()
    straggler = d.reserve(engine="old")
    d.c.consume(names.trainer, 0)
    d.publish()
    fresh = d.reserve()
    assert (straggler.deadline, fresh.deadline) == (1, 2)
    assert d.finish(fresh) == Placed(2)
    assert d.finish(straggler) == Placed(1)


def test_what_the_straggler_gave_up_is_filled_from_later_buffers(new_run, names):
    d = new_run(batch_size=1, max_staleness=1)
    d.c.register_engine("old", 0)
    d.fill_head()
    straggler = d.reserve(engine="old")
    d.c.consume(names.trainer, 0)
    d.publish()
    fresh = d.reserve()
    assert d.finish(fresh) == Placed(2)
    d.c.release(straggler.entry, "failed")
    assert (d.buffer(1).state, d.buffer(2).occupied) == ("READY", 0)
    assert d.entry(fresh.entry)["buffer"] == "1"


def test_the_same_occupy_gets_the_first_answer_and_stores_one_payload(new_run):
    d = new_run()
    r = d.reserve()
    assert d.finish(r) == Placed(0)
    evidence, stored = d.prompt(r.prompt), d.stored_payloads()
    assert d.finish(r) == Placed(0)
    assert d.finish(r, client=d.new_client()) == Placed(0)
    assert (d.prompt(r.prompt), d.stored_payloads(), d.c.status()["placed"]) == (evidence, stored, 1)


def test_a_transaction_sent_twice_counts_once(new_run, names):
    """redis-py repeats by itself when a reply is lost: the same XADD, the same EVALSHA."""
    d = new_run()
    r = d.reserve()
    payload = names.trajectory(r).encode()
    first, again = (send(d, r, names.worker, payload) for _ in range(2))
    assert first == again
    assert d.stored_payloads() == {(names.worker, "77-0")}


def test_a_transaction_sent_again_brings_no_payload_back_that_nobody_needs(new_run, names):
    d = new_run(batch_size=1, max_staleness=0)
    r = d.reserve()
    payload = names.trajectory(r).encode()
    first = send(d, r, names.worker, payload)
    d.ms += 60_000
    d.c.reap()  # the worker is dead, and its stream goes with its last payload
    d.c.join("t1", 0, recent=[r.entry])
    assert not d.client.exists(keys.trajectories(d.run, names.worker))
    again = send(d, r, names.worker, payload)
    assert (again[0], again[4]) == (first[0], first[4])
    assert d.stored_payloads() == set()
    assert not d.client.exists(keys.trajectories(d.run, names.worker), keys.worker(d.run, names.worker))


def test_an_entry_is_handed_in_by_its_own_worker_only(new_run, names):
    d = new_run()
    r = d.reserve()
    assert send(d, r, "w1-a", names.trajectory(r).encode())[0] == b"GONE"
    assert (d.entry(r.entry)["state"], d.stored_payloads()) == ("RESERVED", set())
    assert d.finish(r) == Placed(0)


def test_gone_entries_leave_no_payload(new_run):
    d = new_run()
    r = d.reserve()
    d.c.release(r.entry, "cancelled")
    assert d.finish(r) == Refused("GONE")
    assert d.finish(r, client=d.new_client()) == Refused("GONE")
    assert d.stored_payloads() == set()
    r = d.reserve()
    d.client.delete(keys.entry(d.run, r.entry))
    assert d.finish(r) == Refused("GONE")
    assert d.finish(r, client=d.new_client()) == Refused("GONE")
    assert d.stored_payloads() == set()


def test_a_segment_older_than_the_trajectory_is_refused_and_the_entry_stays(new_run, names):
    d = new_run()
    d.update()
    r = d.reserve()
    before = d.everything()
    assert d.finish(r, segments=[(1, 2, "e0", 0)]) == Refused("OLD")
    assert d.everything() == before
    assert d.finish(r, segments=[(1, 1, "e0", 1), (2, 1, "e0", 2)]) == Placed(1)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"outcome": float("nan")}, "NOT_FINITE"),
        ({"outcome": 1.5}, "RANGE"),
        ({"reward": float("inf")}, "NOT_FINITE"),
        ({"rollout_logprobs": [0.0, float("nan"), -1.0]}, "NOT_FINITE"),
        ({"loss_mask": [0, 1]}, "LENGTH"),
        ({"tokens": list(range(400)), "loss_mask": [0] * 400, "rollout_logprobs": [0.0] * 400, "segments": []}, "SIZE"),
        ({"prompt_id": "another"}, "PROMPT"),
        ({"version": 1, "segments": [(1, 2, "e0", 1)]}, "VERSION"),
        ({"entry": "another"}, "FOREIGN"),
    ],
)
def test_bad_trajectories_are_refused_with_a_code_and_the_entry_stays_reserved(new_run, names, changes, code):
    d = new_run(max_trajectory_bytes=2000)
    r = d.reserve()
    with pytest.raises(BadTrajectory) as error:
        d.c.occupy(r.entry, [names.trajectory(r, **changes)])
    assert error.value.code == code
    assert d.entry(r.entry)["state"] == "RESERVED"
    assert d.stored_payloads() == set()
    assert d.finish(r) == Placed(0)


def test_an_entry_takes_exactly_one_trajectory_of_each_member(new_run, names):
    d = new_run(group_size=2)
    r = d.reserve()
    for group in ([names.trajectory(r)], [names.trajectory(r)] * 3, []):
        with pytest.raises(BadTrajectory):
            d.c.occupy(r.entry, group)
    assert d.stored_payloads() == set()
    assert d.c.occupy(r.entry, [names.trajectory(r, 1.0), names.trajectory(r, 0.0, member=1)]) == Placed(0)
    assert len(d.stored_payloads()) == 2


def test_the_prompt_is_idle_again_with_its_outcome_as_evidence(new_run):
    d = new_run(prompts=1)
    r = d.reserve()
    d.finish(r, outcome=1.0)
    assert float(d.prompt(r.prompt)["value"]) == 5 / 9
    assert d.reserve().value == 5 / 9


def test_evidence_is_equal_under_any_permutation_of_receipts(new_run, names):
    """Three entries of one prompt from events 0, 1 and 2, finished in all six orders."""
    found, d = [], new_run(prompts=0, batch_size=6, max_staleness=2)
    d.client.hset(keys.run(d.run), "window", "0/18/ 0/0/ 0/0/")  # all 18 are due in buffer 2
    for number, order in enumerate(itertools.permutations(range(3))):
        prompt = f"only-{number}"
        taken = []
        d.c.add_prompts([{"id": prompt}])
        fields = {"state": "RESERVED", "prompt": prompt, "version": 0, "deadline": 2, "worker": names.worker}
        for event in range(3):  # one prompt is never in flight twice, so these entries are written by hand
            entry = f"{prompt}-{event}"
            d.client.hset(keys.entry(d.run, entry), mapping=fields | {"event": event, "exponential": 1, "value": 0.5})
            taken.append(entry)
        for i in order:
            r = type("R", (), {"prompt": prompt, "entry": taken[i], "version": 0, "event": i, "value": 0.5})
            assert isinstance(d.finish(r, outcome=[0.0, 1.0, 0.25][i]), Placed | Surplus)
        evidence = d.prompt(prompt)
        found.append((float(evidence["alpha"]), float(evidence["beta"])))
    rho = 0.875
    alpha = rho**2 * 4 + rho * 1 + 0.25
    beta = rho**2 * 4 + rho**2 * 1 + 0.75
    assert all(pair == pytest.approx((alpha, beta), rel=1e-12) for pair in found)


def test_sixteen_threads_of_one_worker_lose_nothing(new_run, names):
    d = new_run(prompts=64, batch_size=32, max_staleness=1)
    taken = d.reserve_all()
    barrier = threading.Barrier(16)

    def work(mine):
        barrier.wait()
        return [d.finish(r) for r in mine]

    with ThreadPoolExecutor(16) as pool:
        answers = [a for part in pool.map(work, [taken[i::16] for i in range(16)]) for a in part]
    assert all(isinstance(a, Placed) for a in answers)
    refs = d.c.consume(names.trainer, 0).refs + d.c.peek(1)
    assert {t.entry for t in d.c.fetch(refs)} == {r.entry for r in taken}


def test_a_script_flush_loses_nothing(new_run, names):
    d = new_run()
    r = d.reserve()
    d.client.script_flush()
    d.c.reap()  # the coordinator's next call loads them all again
    assert d.finish(r) == Placed(0)
    d.client.script_flush()
    d.c.reap()
    assert d.reserve().version == 0
    assert len(d.stored_payloads()) == d.c.status()["placed"] == 1


def test_another_process_that_never_reserved_can_hand_in_the_entry(new_run):
    d = new_run()
    r = d.reserve()
    assert d.finish(r, client=d.new_client()) == Placed(0)
