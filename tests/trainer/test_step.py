"""A gradient that is not finite: what it changes (nothing), what is said of it, and when it ends the run."""

import json
import logging
import math

import pytest
import torch

from pipeline.config import Trainer as Settings
from pipeline.jsonl import as_line
from tests.trainer import gradients
from tests.trainer.gradients import distance, make_updater, settings
from tests.trainer.ledger import Producer, make_run, trajectory
from tests.trainer.poison import batch, overflow_backward, poison
from tests.trainer.runs import recorded, train
from trainer.batch import TrainingFailed
from trainer.loop import Trainer
from trainer.ranks import joined
from trainer.receipts import Receipts
from trainer.step import of_steps


@pytest.fixture
def make(tiny_model):
    """Makes an Updater, of one rank."""
    with joined(Settings()) as ranks:
        yield lambda **options: make_updater(ranks, settings(tiny_model, 400, **options))


def state(updater):
    """Weights, moments, count of steps, and the reference, as they are."""
    tensors = {name: p.detach().full_tensor().clone() for name, p in updater.model.named_parameters()}
    for name, p in updater.model.named_parameters():
        for key, value in updater.optimizer.state[p].items():
            tensors[f"{name}.{key}"] = value.full_tensor().clone() if hasattr(value, "full_tensor") else value.clone()
    if updater.reference is not None:
        tensors |= {f"reference.{name}": p.full_tensor().clone() for name, p in updater.reference.named_parameters()}
    return tensors


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def told(caplog):
    return [record.message for record in caplog.records if record.name == "trainer.step"]


def update(updater, trajectories, version=0):
    return updater.update(updater.prepare(trajectories), version)


def test_a_step_without_a_finite_gradient_leaves_everything_as_it_was_and_the_next_one_goes_on(make, caplog):
    reference = {"kl": 0.1, "reference": "ewma"}
    updater, undisturbed = make(loss=reference), make(loss=reference)
    for each in (updater, undisturbed):
        update(each, batch())
    before, faulty = state(updater), poison(updater.model)
    metrics = update(updater, batch(3, 7), version=1)
    assert metrics["skipped"] == 1 and metrics["trajectories"] == 13
    assert same(state(updater), before)
    faulty.remove()
    assert update(updater, batch(), version=1)["skipped"] == 0
    update(undisturbed, batch(), version=1)
    assert same(state(updater), state(undisturbed))
    (said,) = told(caplog)
    assert said.startswith("update 1: the gradient is not finite: log-probs of the policy are not finite in 2 of 13 ")
    assert (
        "trajectories (entry e3, e7). This optimizer step is skipped: 1 in a row, of at most trainer.max_skipped = 3"
        in said
    )


def test_what_is_not_finite_is_no_metric(make):
    updater = make()
    poison(updater.model)
    metrics = update(updater, batch(3))
    assert not {"loss", "grad_norm", "entropy", "mismatch_kl", "mismatch_alarm"} & metrics.keys()
    assert {"reward", "lr", "staleness"} <= metrics.keys()
    assert json.loads(as_line(metrics), parse_constant=pytest.fail) == metrics


def test_the_steps_beside_the_one_that_is_skipped_are_made(make):
    updater, before = make(minibatches=5), None
    poison(updater.model)
    before = state(updater)
    metrics = update(updater, batch(3))
    assert metrics["skipped"] == 1
    assert math.isfinite(metrics["loss"]) and metrics["grad_norm"] > 0
    assert not same({name: state(updater)[name] for name in before}, before)
    assert all(float(updater.optimizer.state[p]["step"]) == 4 for p in updater.model.parameters())
    assert updater.stepper.skipped_in_a_row == 0, "the fourth of five was skipped"


def test_an_overflow_in_the_backward_pass_is_told_with_the_first_parameter_and_of_how_many(make, caplog):
    updater = make()
    overflow_backward(updater.model.model.layers[0].mlp)
    metrics = update(updater, batch())
    assert metrics["skipped"] == 1 and math.isfinite(metrics["loss"])
    said = told(caplog)[0]
    assert "the loss is finite" in said and "the backward pass overflowed: in " in said
    assert "model.embed_tokens.weight the first" in said
    names = [name for name, _ in updater.model.named_parameters()]
    below = [name for name in names if "layers.1" not in name and name not in ("model.norm.weight", "lm_head.weight")]
    assert f"{len(below)} of {len(names)} parameters" in said


def test_a_norm_that_alone_overflows_is_told(make, caplog):
    updater = make(advantage={"normalization": "none"})
    huge = [trajectory(seed, reward=1e30 * (-1) ** seed) for seed in range(4)]
    assert update(updater, huge)["skipped"] == 1
    assert "every gradient are finite, and only their norm (inf) overflows float32" in told(caplog)[0]


def test_the_reference_is_named_if_it_is_what_is_not_finite(make, caplog):
    updater = make(loss={"kl": 0.1})
    poison(updater.reference)
    assert update(updater, batch(5))["skipped"] == 1
    assert "log-probs of the reference are not finite in 1 of 13 trajectories (entry e5)" in told(caplog)[0]


def test_what_was_wrong_only_once_is_told_as_such(make, caplog):
    updater, faulty = make(), []

    def heal(*_):
        faulty[0].remove()

    faulty.append(poison(updater.model))
    updater.model.register_forward_hook(heal)
    assert update(updater, batch(5))["skipped"] == 1
    assert "is finite when it is computed once more" in told(caplog)[0]


@pytest.mark.parametrize("most", [0, 2])
def test_one_step_more_than_may_be_skipped_in_a_row_ends_the_run(make, most):
    updater = make(trainer={"max_skipped": most})
    faulty = poison(updater.model)
    for version in range(most):
        update(updater, batch(3), version)
    faulty.remove()
    update(updater, batch(), most)
    poison(updater.model)
    for version in range(most):
        update(updater, batch(3), version)
    before = state(updater)
    with pytest.raises(TrainingFailed, match=rf"update 9: .*are not finite.*max_skipped = {most}.*headrace fork"):
        update(updater, batch(3), 9)
    assert same(state(updater), before)


def test_many_entries_are_not_all_named(make, caplog):
    updater = make()
    poison(updater.model)
    update(updater, batch(*range(13)))
    assert "in 13 of 13 trajectories (entry e0, e1, e2, …)" in told(caplog)[0]


def test_metrics_are_means_over_the_steps_that_have_them_the_largest_of_maxima_and_the_sum_of_skipped():
    steps = [
        {"loss": math.nan, "tis_max": 3.0, "kl": math.nan, "skipped": 1},
        {"loss": 2.0, "tis_max": math.inf, "kl": math.nan, "skipped": 1},
        {"loss": 4.0, "tis_max": 2.0, "kl": math.nan, "skipped": 0},
    ]
    assert of_steps(steps) == {"loss": 3.0, "tis_max": 3.0, "skipped": 2}


def test_an_update_that_was_skipped_has_moved_the_policy_on_no_prompt(make):
    updater = make()
    receipts = Receipts(updater)
    receipts.update(updater.prepare(batch()), 0)
    poison(updater.model)
    metrics = receipts.update(updater.prepare(batch(3)), 1)
    assert metrics["drift"] == 0 and metrics["retention"] == pytest.approx(0.96)
    assert len(receipts.of(1)) == 13, "what was consumed counts, and is the next visit's trajectory"
    assert {t.prompt_id: t for t in receipts.previous}["p3"].tokens[1] == 319


class Poisoned(Trainer):
    """Its model computes NaN of everything."""

    def _start(self):
        super()._start()
        self.updater.model.get_input_embeddings().register_forward_hook(lambda _m, _g, found: found * torch.nan)


def test_the_row_of_skipped_steps_is_counted_on_after_a_resume(client, run, tmp_path, caplog):
    config = make_run(tmp_path, run, checkpoint_every=1)
    caplog.set_level(logging.WARNING)
    with Producer(client, config) as producer:
        train(config, client, kind=Poisoned, stop=lambda: int(producer.ledger.fields()["version"]) == 2)
        assert [line["skipped"] for line in recorded(config)] == [1, 1]
        with pytest.raises(TrainingFailed, match=r"update 3: .*The 3 optimizer steps before were skipped"):
            train(config, client, kind=Poisoned)
        train(config, client)
    assert [line["skipped"] for line in recorded(config)] == [1, 1, 1, 0]
    assert [said.split(": ")[-1][0] for said in told(caplog)] == ["1", "2", "3"]


def test_the_learning_rate_is_the_schedules_also_after_a_resume(client, run, tmp_path):
    config = make_run(tmp_path, run, lr='1e-3\nschedule = "cosine"\ndecay_steps = 4\nwarm_up = 1\nmin_lr = 0.1')
    with Producer(client, config) as producer:
        train(config, client, stop=lambda: int(producer.ledger.fields()["version"]) == 2)
        train(config, client)
    expected = [1e-3, 1e-3, 1e-3 * (0.1 + 0.9 * 0.75), 1e-3 * (0.1 + 0.9 * 0.25)]
    assert [line["lr"] for line in recorded(config)] == pytest.approx(expected)


def test_each_step_is_made_at_its_updates_learning_rate(tiny_model):
    flat, _, once = gradients.compute(tiny_model, 400)
    warming = {"lr": 4e-3, "warm_up": 12}  # of update 2, which is the third: a quarter
    metrics, _, weights = gradients.compute(tiny_model, 400, optimizer=warming)
    assert metrics["lr"] == flat["lr"] == 1e-3
    assert distance(weights, once) == 0
