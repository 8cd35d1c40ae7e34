"""Credit: evidence in the order of receipt, from what was trained alone, once for each update (SPO)."""

import pytest
from scipy.stats import chisquare

from advantage import sampling_weight
from pipeline import keys
from pipeline.coordinator import Coordinator, Credited, Filtered, Replayed
from pipeline.errors import BadCredit, Fenced, OutOfSequence, RolledBack

RECEIPT = {"evidence": "receipt", "batch_size": 2, "max_staleness": 1}


def consume(d, names):
    """The next batch, of two different prompts, is with the trainer; its prompts."""
    for r in [d.reserve(), d.reserve()]:
        d.finish(r)
    return [d.entry(ref.entry)["prompt"] for ref in d.c.consume(names.trainer, d.head).refs]


def update(d, names):
    """A whole update whose prompts were solved, and retain 0.9."""
    prompts = consume(d, names)
    d.c.credit(names.trainer, d.head - 1, [(prompt, 0.9, 1.0) for prompt in prompts])
    d.publish()
    return prompts


def evidence(d, prompt):
    p = d.prompt(prompt)
    return float(p["alpha"]), float(p["beta"]), float(p["value"])


def place(d, prompt):
    """How long it still waits in the race."""
    return d.client.zscore(keys.prompts(d.run), prompt) - float(d.c.fields()["clock"])


def weight(d, prompt):
    return sampling_weight(evidence(d, prompt)[2])


# -- the end of a visit


def test_a_finished_visit_leaves_the_evidence_and_the_prompt_waits_at_its_present_weight(new_run):
    d = new_run(prompts=4, **RECEIPT)
    r = d.reserve()
    before, exponential = evidence(d, r.prompt), float(d.entry(r.entry)["exponential"])
    d.finish(r)
    assert evidence(d, r.prompt) == before == (4, 4, 0.5)
    assert d.prompt(r.prompt)["visits"] == "1"
    assert place(d, r.prompt) == pytest.approx(exponential / weight(d, r.prompt))


def test_what_is_filtered_leaves_the_evidence_too(new_run):
    d = new_run(**RECEIPT | {"group_size": 2, "filter_metric": "score"})
    r = d.reserve()
    assert d.finish(r, [1.0, 1.0]) == Filtered()
    assert evidence(d, r.prompt) == (4, 4, 0.5)


def test_an_event_time_run_counts_an_outcome_at_its_occupy_and_is_never_credited(new_run, names):
    d = new_run(batch_size=2)
    [prompt, _] = consume(d, names)
    assert evidence(d, prompt) == (5, 4, 5 / 9)
    before = d.everything()
    with pytest.raises(BadCredit, match='only evidence = "receipt" is credited') as refused:
        d.c.credit(names.trainer, 0, [(prompt, 0.9, 1.0)])
    assert refused.value.code == "NO_EVIDENCE"
    assert d.everything() == before


# -- a credit


def test_a_credit_fades_what_was_and_adds_the_outcome_in_the_order_of_receipt(new_run, names):
    d = new_run(**RECEIPT)
    a, b = consume(d, names)
    assert d.c.credit(names.trainer, 0, [(a, 0.9, 1.0), (b, 0.96, 0.25), (a, 0.5, 0.0)]) == Credited()
    alpha, beta = 0.5 * (0.9 * 4 + 1), 0.5 * (0.9 * 4) + 1
    assert evidence(d, a) == pytest.approx((alpha, beta, alpha / (alpha + beta)))
    assert evidence(d, b) == pytest.approx((0.96 * 4 + 0.25, 0.96 * 4 + 0.75, 4.09 / 8.68))
    assert d.c.fields()["credited"] == "1"
    [event] = [e for e in d.c.wait("0", 0) if e.kind == "credited"]
    assert event.fields == {"version": "0", "prompts": f'["{a}","{b}","{a}"]', "ms": str(d.ms)}


def test_a_credit_that_comes_again_is_replayed_and_changes_nothing(new_run, names):
    d = new_run(**RECEIPT)
    prompts = update(d, names)
    before = d.everything()
    assert d.c.credit(names.trainer, 0, [(prompts[0], 0.5, 0.0)]) == Replayed()
    assert d.everything() == before


def test_updates_are_credited_in_sequence_and_before_their_policy_is_out(new_run, names):
    d = new_run(**RECEIPT)
    prompts = consume(d, names)
    before = d.everything()
    for code, call in (
        ("AHEAD", lambda: d.c.credit(names.trainer, 1, [])),
        ("UNCREDITED", lambda: d.c.publish(names.trainer, 1, "weights/1", "")),
    ):
        with pytest.raises(OutOfSequence) as refused:
            call()
        assert refused.value.code == code
    assert d.everything() == before
    d.c.credit(names.trainer, 0, [(prompt, 0.9, 1.0) for prompt in prompts])
    d.publish()
    consume(d, names)
    d.client.hset(keys.run(d.run), "credited", 0)
    with pytest.raises(OutOfSequence, match="credit update 0 first"):
        d.new_client().credit(names.trainer, 1, [])


@pytest.mark.parametrize(
    ("code", "credit"),
    [
        ("RETENTION", ("p0", 0.0, 1.0)),
        ("RETENTION", ("p0", 1.1, 1.0)),
        ("RETENTION", ("p0", float("nan"), 1.0)),
        ("OUTCOME", ("p0", 0.9, -0.1)),
        ("OUTCOME", ("p0", 0.9, 1.5)),
        ("OUTCOME", ("p0", 0.9, float("nan"))),
        ("PROMPT", ("nobody", 0.9, 1.0)),
    ],
)
def test_one_bad_credit_among_good_ones_writes_nothing(new_run, names, code, credit):
    d = new_run(**RECEIPT)
    [good, other] = consume(d, names)
    before = d.everything()
    with pytest.raises(BadCredit, match=credit[0]) as refused:
        d.c.credit(names.trainer, 0, [(good, 0.9, 1.0), credit, (other, 0.9, 1.0)])
    assert refused.value.code == code
    assert d.everything() == before


def test_a_trainer_that_was_replaced_credits_nothing_and_the_new_one_goes_on_where_it_stood(new_run, names):
    d = new_run(**RECEIPT)
    prompts = update(d, names)
    second = consume(d, names)
    assert d.c.join("t1", 0).credited == 1
    before = d.everything()
    with pytest.raises(Fenced, match="t1"):
        d.c.credit(names.trainer, 1, [(second[0], 0.9, 1.0)])
    assert d.c.credit("t1", 0, [(prompts[0], 0.9, 1.0)]) == Replayed()
    assert d.everything() == before
    assert d.c.credit("t1", 1, [(prompt, 0.9, 0.0) for prompt in second]) == Credited()


# -- the prompt, wherever it is


def test_an_idle_prompts_wait_is_stretched_by_the_ratio_of_its_weights(new_run, names):
    d = new_run(**RECEIPT)
    credited, other = consume(d, names)
    waits, old = [place(d, p) for p in (credited, other)], weight(d, credited)
    d.c.credit(names.trainer, 0, [(credited, 0.01, 1.0)])
    assert weight(d, credited) < old
    assert place(d, credited) == pytest.approx(waits[0] * old / weight(d, credited))
    assert place(d, other) == waits[1]


def test_a_retry_stays_first_in_line_and_reads_its_new_value(new_run, names):
    d = new_run(prompts=2, **RECEIPT)
    first, second = consume(d, names)
    taken = [d.reserve(), d.reserve()]
    d.c.release(taken[0].entry, "failed")
    score = d.client.zscore(keys.prompts(d.run), taken[0].prompt)
    d.c.credit(names.trainer, 0, [(prompt, 0.9, 1.0) for prompt in (first, second)])
    assert d.client.zscore(keys.prompts(d.run), taken[0].prompt) == score
    assert d.reserve().value == pytest.approx(4.6 / 8.2)


def test_what_is_in_flight_keeps_its_frozen_value_and_its_prompt_returns_at_the_new_weight(new_run, names):
    d = new_run(prompts=2, **RECEIPT)
    consume(d, names)
    r = d.reserve()
    before = d.entry(r.entry)
    d.c.credit(names.trainer, 0, [(r.prompt, 0.01, 1.0)])
    assert d.entry(r.entry) == before and float(before["value"]) == r.value == 0.5
    assert d.client.zscore(keys.prompts(d.run), r.prompt) is None
    d.finish(r, outcome=0.0)
    assert place(d, r.prompt) == pytest.approx(float(before["exponential"]) / weight(d, r.prompt))


def test_a_prompt_in_quarantine_is_credited_and_stays_there(new_run, names):
    d = new_run(prompts=2, max_attempts=1, **RECEIPT)
    consume(d, names)
    r = d.reserve()
    d.c.release(r.entry, "failed")
    d.c.credit(names.trainer, 0, [(r.prompt, 0.9, 1.0)])
    assert evidence(d, r.prompt)[:2] == pytest.approx((4.6, 3.6))
    assert d.c.status()["prompts"] == {"idle": 1, "in flight": 0, "quarantined": 1}


def test_a_shuffled_prompt_keeps_its_place(new_run, names):
    d = new_run(sampler="shuffle", **RECEIPT)
    prompt, _ = consume(d, names)
    before = place(d, prompt)
    d.c.credit(names.trainer, 0, [(prompt, 0.01, 1.0)])
    assert place(d, prompt) == before


def test_after_a_credit_prompts_are_drawn_in_proportion_to_their_new_weights(new_run, names, client):
    """Two sets of values in turn, all prompts credited while they wait: what counts is the set before each draw."""
    d = new_run(prompts=4, **RECEIPT)
    consume(d, names)
    values = ([0.5, 0.02, 0.2, 0.001], [0.001, 0.7, 0.02, 0.5])
    draws = 200 if type(client).__module__.startswith("fakeredis") else 2_000
    counts = [[0] * 4, [0] * 4]
    for n in range(draws):
        d.client.hset(keys.run(d.run), "credited", 0)  # update 0, again and again
        d.c.credit(names.trainer, 0, [(f"p{i}", 1e-9, value) for i, value in enumerate(values[n % 2])])
        r = d.reserve()
        counts[n % 2][int(r.prompt[1:])] += 1
        d.c.release(r.entry, "cancelled")
    for row, of in zip(counts, values, strict=True):
        weights = [sampling_weight(v) for v in of]
        expected = [sum(row) * w / sum(weights) for w in weights]
        assert chisquare(row, expected).pvalue > 1e-4, row


# -- a Redis that lost writes


def snapshot(d):
    return {name: d.client.dump(name) for name in d.client.scan_iter(f"{keys.run(d.run)}*")}


def lose(d, kept):
    d.client.delete(*d.client.scan_iter(f"{keys.run(d.run)}*"))
    for name, dump in kept.items():
        d.client.restore(name, 0, dump)


def prompts_of(d):
    return {p["id"]: (p["alpha"], p["beta"], p["value"]) for p in d.c.prompts()}


def evidence_of_all(d):
    return {p["id"]: (p["alpha"], p["beta"], p["value"]) for p in d.c.prompts()}


def test_a_credit_that_redis_lost_is_noticed_and_given_again_exactly(new_run, names):
    """A credit changes neither version nor head, which is all that other calls look at."""
    d = new_run(**RECEIPT)
    credits = [(prompt, 0.9, 1.0) for prompt in consume(d, names)]
    kept = snapshot(d)
    d.c.credit(names.trainer, 0, credits)
    expected = evidence_of_all(d)
    lose(d, kept)
    with pytest.raises(RolledBack, match="the trainer must join again"):
        d.c.publish(names.trainer, 1, "weights/1", "")
    assert d.c.join("t1", 1).credited == 0
    assert d.c.credit("t1", 0, credits) == Credited()
    assert evidence_of_all(d) == expected
    assert d.c.publish("t1", 1, "weights/1", "").event == 1


def test_a_credit_lost_between_two_publications_is_noticed_at_the_next_credit(new_run, names):
    d = new_run(**RECEIPT | {"publish_every": 2})
    first = [(prompt, 0.9, 1.0) for prompt in consume(d, names)]
    kept = snapshot(d)
    d.c.credit(names.trainer, 0, first)
    lose(d, kept)
    second = [(prompt, 0.96, 0.0) for prompt in consume(d, names)]
    with pytest.raises(RolledBack):
        d.c.credit(names.trainer, 1, second)
    joined = d.c.join("t1", 2)
    assert [d.c.credit("t1", joined.credited + n, c) for n, c in enumerate([first, second])] == [Credited()] * 2


def test_credits_older_than_what_a_trainer_remembers_are_given_up(new_run, names):
    """It remembers its last max_staleness + 2 updates, as it does their entries."""
    d = new_run(**RECEIPT)
    update(d, names)
    kept = snapshot(d)
    for _ in range(3):
        update(d, names)
    lose(d, kept)
    assert d.c.join("t1", 4).credited == 1
    lose(d, kept)
    assert d.c.join("t1", 5).credited == 2
    assert int(d.c.fields()["credited"]) == 2


def test_a_redis_that_was_replaced_begins_with_the_first_values(new_run, names):
    """Its prompts may not be there yet when the trainer joins; and what they knew of older updates is gone anyway."""
    d = new_run(**RECEIPT)
    joined_once = snapshot(d)
    update(d, names)
    lose(d, {})
    new = Coordinator.create(d.client, d.run, RECEIPT)
    assert new.join("t1", 1).credited == 1
    lose(d, joined_once)
    assert d.c.join("t1", 1).credited == 0
