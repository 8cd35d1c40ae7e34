"""Loss and gradient of an update whatever the packing: layout, budget, rows of logits at a time, layers recomputed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer import gradients
from tests.trainer.gradients import distance
from tests.trainer.ledger import trajectory

TRAJECTORIES = st.lists(st.tuples(st.integers(0, 1000), st.integers(4, 200)), min_size=1, max_size=10)


@settings(max_examples=25, deadline=None)
@given(
    TRAJECTORIES,
    st.integers(1, 500),
    st.sampled_from(["flat", "rows", "alone"]),
    st.sampled_from([1, 3, 50]),
    st.booleans(),
    st.sampled_from([0.0, 0.1]),
)
def test_loss_and_gradient_are_the_same(tiny_model, drawn, budget, layout, logits, recomputed, entropy):
    trajectories = [trajectory(seed, longest=longest) for seed, longest in drawn]
    options = {"trajectories": trajectories, "loss": {"entropy": entropy}}
    expected, gradient, _ = gradients.compute(tiny_model, 10_000, layout="alone", **options)
    trainer = {"activation_checkpointing": recomputed}
    found, its, _ = gradients.compute(tiny_model, budget, layout=layout, logits=logits, trainer=trainer, **options)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5, abs=1e-7)
    assert found["entropy"] == pytest.approx(expected["entropy"], rel=1e-5)
    assert distance(its, gradient) <= 1e-5 or expected["grad_norm"] == 0
