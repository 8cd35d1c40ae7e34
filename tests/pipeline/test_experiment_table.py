"""Tables 1 and 2 of arXiv 2608.24870 against their formulas written out, and against what a hand makes of four runs."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advantage.metrics import auc_trapezoid, end_reward, learning_composite
from pipeline import experiment_table as table

HALF, WHOLE = [0.5, 0.5], [0.5, 1.0]
RUNS = {
    ("s", "traj", 1): [0.2, 0.4],
    ("s", "tok", 1): [0.4, 0.8],  # AUC 0.6 against 0.3
    ("s", "traj", 2): HALF,
    ("s", "tok", 2): [0.5, 0.4],  # 0.45 against 0.5
    ("s", "traj", 3): HALF,
    ("s", "tok", 3): [0.9],  # it never reached the budget
    ("s", "traj", 4): [],
    ("s", "tok", 4): WHOLE,
    ("t", "traj", 1): HALF,
    ("t", "tok", 1): WHOLE,
}


def test_means_are_over_whole_runs_and_differences_over_whole_pairs():
    first, second, third, fourth = table.summary(RUNS, 2, "traj")
    assert first == {
        "setting": "s",
        "method": "traj",
        "runs": 3,
        "AUC": "0.433",  # (0.3 + 0.5 + 0.5) / 3
        "end reward": "0.433",
        "pairs": "-",
        "Δ AUC": "-",
        "Δ end reward": "-",
    }
    # differences of 30 and -5 points: mean 12.5, sample s.d. 35 / √2
    assert second["runs"] == 3 and second["pairs"] == 2
    assert second["Δ AUC"] == second["Δ end reward"] == "+12.50 ± 24.75 (1 of 2 positive)"
    assert third["Δ AUC"] == "-" and fourth["Δ AUC"] == "+25.00 (1 of 1 positive)", "one pair has no deviation"


def test_what_is_left_out_is_named_and_nothing_is_lost():
    short = table.short(RUNS, 2)
    assert short == {("s", "tok", 3): "1 of 2 updates", ("s", "traj", 4): "0 of 2 updates"}
    assert short.keys() | table.whole(RUNS, 2).keys() == RUNS.keys()
    assert [row["seed"] for row in table.pairs(RUNS, 2, "traj")] == [1, 2, 1]
    assert [row["Δ AUC"] for row in table.pairs(RUNS, 2, "traj")] == ["+30.00", "-5.00", "+25.00"]


def test_a_setting_without_one_whole_run_keeps_its_rows():
    rows = table.summary({("s", "traj", 1): [], ("s", "tok", 1): [0.1]}, 2, "traj")
    assert [(row["method"], row["runs"], row["AUC"], row["Δ AUC"]) for row in rows] == [
        ("traj", 0, "-", "-"),
        ("tok", 0, "-", "-"),
    ]


def test_the_learning_composite_is_there_from_ten_updates_on():
    assert "C_10" not in table.metrics_of(9) and table.metrics_of(10)["C_10"] is learning_composite
    long = {("s", name, 1): [start + 0.01 * t for t in range(12)] for name, start in {"a": 0.1, "b": 0.3}.items()}
    assert table.summary(long, 12, "a")[1]["Δ C_10"] == "+20.00 (1 of 1 positive)"


curves = st.lists(st.floats(0, 1), min_size=12, max_size=12)


@given(st.lists(st.tuples(curves, curves), min_size=2, max_size=8), st.sampled_from([12, 10]))
def test_a_difference_is_that_of_the_papers_formulas(pairs, budget):
    pairs = [(own[:budget], other[:budget]) for own, other in pairs]
    runs = {("s", name, seed): pair[k] for seed, pair in enumerate(pairs) for k, name in enumerate(("m", "b"))}
    for metric, written_out in (
        (auc_trapezoid, lambda r: math.fsum((r[t] + r[t + 1]) / 2 for t in range(budget - 1)) / (budget - 1)),
        (end_reward, lambda r: math.fsum(r[-5:]) / 5),
        (
            learning_composite,
            lambda r: (math.fsum((r[t] + r[t + 1]) / 2 for t in range(9)) / 9 + math.fsum(r[5:10]) / 5) / 2,
        ),
    ):
        seeds, found = table.difference(runs, "s", "m", "b", metric)
        expected = [written_out(own) - written_out(other) for own, other in pairs]
        assert seeds == list(range(len(pairs)))
        assert found.mean == pytest.approx(statistics.fmean(expected), abs=1e-12)
        assert found.sd == pytest.approx(statistics.stdev(expected), abs=1e-12)
