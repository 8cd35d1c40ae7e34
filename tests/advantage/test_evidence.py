"""Evidence against the closed form of Eq. 3, arXiv 2608.24870."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advantage import BadInput, Evidence

receipts = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 400)), max_size=60)


def receive(evidence, outcomes):
    for outcome, event in outcomes:
        evidence = evidence.add(outcome, event)
    return evidence


def closed_form(alpha, beta, start, rho, outcomes, dispatch):
    """α_q, β_q of Eq. 3 for a dispatch at event `dispatch`, every outcome weighed by its own age."""
    weights = [rho ** (dispatch - event) for _, event in outcomes]
    initial = rho ** (dispatch - start)
    successes = [w * outcome for w, (outcome, _) in zip(weights, outcomes, strict=True)]
    failures = [w * (1 - outcome) for w, (outcome, _) in zip(weights, outcomes, strict=True)]
    return math.fsum([initial * alpha, *successes]), math.fsum([initial * beta, *failures])


@given(receipts, st.floats(0.5, 1), st.integers(0, 30))
def test_evidence_equals_the_closed_form_at_any_later_dispatch(outcomes, rho, later):
    evidence = receive(Evidence(4.5, 3.5, 0, rho), outcomes)
    alpha, beta = closed_form(4.5, 3.5, 0, rho, outcomes, evidence.event)
    assert evidence.alpha == pytest.approx(alpha, rel=1e-12) and evidence.beta == pytest.approx(beta, rel=1e-12)
    alpha, beta = closed_form(4.5, 3.5, 0, rho, outcomes, evidence.event + later)
    assert evidence.value == pytest.approx(alpha / (alpha + beta), rel=1e-12)


@given(receipts.flatmap(lambda outcomes: st.tuples(st.just(outcomes), st.permutations(outcomes))))
def test_the_order_of_receipt_does_not_matter(orders):
    first, second = (receive(Evidence(4, 4, 100), order) for order in orders)
    assert first.event == second.event
    assert first.alpha == pytest.approx(second.alpha, rel=1e-12)
    assert first.beta == pytest.approx(second.beta, rel=1e-12)
    assert abs(first.value - second.value) <= 1e-12


def test_a_tracker_that_decays_at_each_receipt_would_differ():
    late_failure = [(1.0, 1), (1.0, 2), (0.0, 0)]
    by_receipt = 4.0, 4.0
    for outcome, _ in late_failure:
        by_receipt = 0.875 * by_receipt[0] + outcome, 0.875 * by_receipt[1] + 1 - outcome
    by_event = receive(Evidence(4, 4, 0), late_failure)
    assert by_event.value == pytest.approx((4 * 0.765625 + 1.875) / (9 * 0.765625 + 1.875), rel=1e-12)
    assert abs(by_receipt[0] / sum(by_receipt) - by_event.value) > 0.01


def test_an_outcome_of_k_events_ago_weighs_rho_to_the_k():
    for k in range(6):
        evidence = Evidence(4, 4, 10).add(1, 10 - k)
        assert (evidence.alpha, evidence.beta, evidence.event) == (4 + 0.875**k, 4, 10)
        evidence = Evidence(4, 4, 10).add(0, 10 + k)
        assert (evidence.alpha, evidence.beta, evidence.event) == (4 * 0.875**k, 4 * 0.875**k + 1, 10 + k)


def test_another_rho_gives_another_named_value():
    outcomes = [(1, 1), (0, 2), (1, 3)]
    exact = (Fraction(7, 8) ** 3 * 4 + Fraction(7, 8) ** 2 + 1) / (
        Fraction(7, 8) ** 3 * 8 + Fraction(7, 8) ** 2 + Fraction(15, 8)
    )
    assert receive(Evidence(4, 4, 0, 0.875), outcomes).value == pytest.approx(float(exact), rel=1e-14)
    assert abs(receive(Evidence(4, 4, 0, 0.9), outcomes).value - float(exact)) > 1e-3


def test_an_outcome_moves_nothing_but_later_values():
    before = Evidence(4, 4, 0)
    before.add(1, 3)
    assert before == Evidence(4, 4, 0)
    with pytest.raises(AttributeError):
        before.alpha = 5


def test_nothing_underflows_in_a_million_events():
    dense = receive(Evidence(4, 4, 0), ((event % 2, event) for event in range(1, 1_000_001, 5)))
    assert dense.alpha + dense.beta == pytest.approx(1 / (1 - 0.875**5), rel=1e-12)
    idle = Evidence(6, 2, 0).add(0, 1_000_000)
    assert (idle.alpha, idle.beta) == (0, 1)
    assert idle.add(1, 0) == idle
    assert idle.add(1, 1_000_000).value == 0.5


@pytest.mark.parametrize(
    ("outcomes", "alpha", "beta"),
    [
        ([], 4, 4),
        ([0] * 8, 8 * 0.5 / 9, 8 * 8.5 / 9),
        ([1, 0, 0, 1, 1, 0, 0, 0], 8 * 3.5 / 9, 8 * 5.5 / 9),
        ([1] * 8, 8 * 8.5 / 9, 8 * 0.5 / 9),
        ([0.5, 1.0], 8 * 2 / 3, 8 * 1 / 3),
    ],
)
def test_offline_outcomes_are_jeffreys_smoothed_to_the_total_mass(outcomes, alpha, beta):
    evidence = Evidence.from_offline(outcomes)
    assert (evidence.alpha, evidence.beta) == (pytest.approx(alpha), pytest.approx(beta))
    assert (evidence.event, evidence.rho) == (0, 0.875)
    halved = Evidence.from_offline(outcomes, mass=4, event=3, rho=0.5)
    assert halved == Evidence(evidence.alpha / 2, evidence.beta / 2, 3, 0.5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Evidence(4, 4, 0).add(1.5, 1), "outcome is 1.5"),
        (lambda: Evidence(4, 4, 0).add(math.nan, 1), "outcome is nan"),
        (lambda: Evidence(4, 4, 0).add(1, 0.5), "event is 0.5"),
        (lambda: Evidence(4, 4, math.inf), "event is inf"),
        (lambda: Evidence(-1, 4, 0), "found -1, 4"),
        (lambda: Evidence(0, 0, 0), "found 0, 0"),
        (lambda: Evidence(math.nan, 1, 0), "found nan, 1"),
        (lambda: Evidence(4, 4, 0, 0), "found 0"),
        (lambda: Evidence(4, 4, 0, 1.01), "found 1.01"),
        (lambda: Evidence.from_offline([1, 0, -1]), "outcomes[2] is -1"),
        (lambda: Evidence.from_offline([1], mass=0), "positive sum"),
    ],
)
def test_what_has_no_value_is_refused(make, words):
    with pytest.raises(BadInput) as refused:
        make()
    assert words in str(refused.value)
