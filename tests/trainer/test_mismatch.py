"""Engines that really say other log-probs than the trainer: when that is told, how often, and what is said."""

import numpy as np
import pytest

from pipeline.config import Trainer as Settings
from tests.trainer.gradients import compute, make_updater, settings
from tests.trainer.ledger import trajectory
from trainer.mismatch import by_engine_and_age
from trainer.packing import action_places
from trainer.ranks import joined


def told(caplog):
    return [record.message for record in caplog.records if record.name == "trainer.mismatch"]


def rolled_out(updater, count=6, longest=100, engine=lambda i: f"engine-{i % 2}", temperature=lambda i: 1.0):
    """Trajectories with the policy's own log-probs, by engines of which some divide them by a temperature."""
    drafts = [trajectory(seed, longest=longest) for seed in range(count)]
    found = []
    for i, (t, logprobs) in enumerate(zip(drafts, updater.logprobs(drafts), strict=True)):
        claimed = np.zeros(len(t.tokens), np.float32)
        claimed[action_places(t)] = logprobs / temperature(i)
        segments = [(s.start, s.length, engine(i), s.version) for s in t.segments]
        found.append(trajectory(i, longest=longest, rollout_logprobs=claimed, segments=segments))
    return found


@pytest.fixture
def updater(tiny_model):
    with joined(Settings()) as ranks:
        yield make_updater(ranks, settings(tiny_model, 400, optimizer={"lr": 0.0}))


def update(updater, trajectories, version=0):
    return updater.update(updater.prepare(trajectories), version)


def test_an_engine_that_disagrees_is_told_when_it_begins_and_when_it_ends_and_in_each_line_between(updater, caplog):
    good = rolled_out(updater)
    bad = rolled_out(updater, temperature=lambda i: 1.0 + i % 2)  # engine-1 forgot the temperature
    lines = [update(updater, batch, v) for v, batch in enumerate([good, good, bad, bad, bad, good, good])]
    assert [line["mismatch_alarm"] for line in lines] == [0, 0, 1, 1, 1, 0, 0]
    assert lines[0]["mismatch_kl"] < 1e-9 and lines[2]["mismatch_kl"] > 0.1
    began, ended = told(caplog)
    assert began.startswith("update 2: trainer and engines disagree: mismatch_kl is ")
    assert "trainer.mismatch_alarm 0.1" in began and "rollout.temperature" in began
    assert "headrace fork" in began and "after the update, by engine" in began
    assert ended.startswith("update 5: trainer and engines agree again")


def test_it_is_told_which_engine_it_is(updater, caplog):
    update(updater, rolled_out(updater, temperature=lambda i: 1.0 + i % 2))
    engines = dict(part.split(" ") for part in told(caplog)[0].split("by engine: ")[1].split(";")[0].split(", "))
    assert float(engines["engine-0"]) < 1e-6 < 0.1 < float(engines["engine-1"])


def test_a_segment_counts_for_its_own_engine_and_version():
    t = trajectory(1)
    (first, second), actions = t.segments, action_places(t)
    split = trajectory(
        1, version=3, segments=[(first.start, first.length, "a", 3), (second.start, second.length, "b", 5)]
    )
    apart = np.where(actions >= second.start, 1.0, 0.0)
    said = by_engine_and_age([split], [split.rollout_logprobs[actions] + apart.astype(np.float32)], version=5)
    assert said == "by engine: a 0, b 0.72; by updates behind: 0 0.72, 2 0"


def test_the_threshold_is_the_settings(tiny_model):
    for limit, alarm in ((1e-12, 1), (100.0, 0)):
        assert compute(tiny_model, 400, trainer={"mismatch_alarm": limit})[0]["mismatch_alarm"] == alarm


def test_disagreement_is_seen_also_where_the_engines_log_probs_are_the_proximal_ones(tiny_model):
    usual, rollout = (compute(tiny_model, 400, loss={"proximal": p})[0] for p in ("recompute", "rollout"))
    assert rollout["mismatch_kl"] == pytest.approx(usual["mismatch_kl"], rel=1e-5) and usual["mismatch_kl"] > 0
    assert rollout["mismatch_max"] == pytest.approx(usual["mismatch_max"], rel=1e-5)


@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_what_is_rejected_for_its_mismatch_is_part_of_the_mismatch(tiny_model, kind):
    usual = compute(tiny_model, 400)[0]
    rejecting = compute(tiny_model, 150, loss={"rejection": kind, "rejection_high": 1e-2})[0]
    assert rejecting["rejected_fraction"] > 0.1
    assert rejecting["mismatch_kl"] == pytest.approx(usual["mismatch_kl"], rel=1e-5)
    assert rejecting["mismatch_max"] == pytest.approx(usual["mismatch_max"], rel=1e-5)
