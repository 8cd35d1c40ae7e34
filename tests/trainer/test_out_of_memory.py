"""What does not fit into memory becomes the settings that make room; the numbers are those of the run."""

import pytest
import torch

from pipeline.config import Trainer as Settings
from tests.trainer.gradients import make_updater, settings
from tests.trainer.ledger import trajectory
from trainer import out_of_memory
from trainer.batch import TrainingFailed
from trainer.out_of_memory import advising, remedies
from trainer.packing import pack
from trainer.ranks import joined

CPU = torch.device("cpu")


def config_of(tiny_model, budget=8192, **trainer):
    return settings(tiny_model, budget, trainer=trainer)


def micro_batch(rows=4, seed=1):
    t = trajectory(seed, longest=100)
    return pack([[0]] * rows, [t])


def test_an_allocation_that_fails_is_told_with_the_micro_batch_and_what_makes_room(tiny_model):
    trajectories = [trajectory(seed, longest=800) for seed in range(40)]
    with joined(Settings()) as ranks:
        updater = make_updater(ranks, settings(tiny_model, 30_000))
        batch = updater.prepare(trajectories)
        updater.model.get_decoder().register_forward_hook(lambda *_: torch.empty(1 << 50))  # no machine has so much
        with pytest.raises(TrainingFailed) as raised:
            updater.update(batch, 0)
    said = str(raised.value)
    cells = batch.minibatches[0][0].tokens.numel()
    assert said.startswith("out of memory in a micro-batch of ") and "(40 trajectories" in said
    assert "can't allocate memory: you tried to allocate" in said and "peak of this rank" in said
    assert f"trainer.token_budget = {cells // 2} (now 30000)" in said
    assert said.endswith("start the run again: it goes on from its newest checkpoint")
    assert "\n" not in said


def test_other_errors_pass_as_they_are(tiny_model):
    with pytest.raises(RuntimeError, match=r"^shapes$"), advising("it", config_of(tiny_model), CPU):
        raise RuntimeError("shapes")


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")])
def test_each_kind_of_it_is_known(tiny_model, error):
    what = "the optimizer's step"
    with pytest.raises(TrainingFailed, match=f"out of memory in {what}: "), advising(what, config_of(tiny_model), CPU):
        raise error


def test_a_budget_is_halved_from_what_failed_and_never_below_the_longest_trajectory(tiny_model):
    micro = micro_batch(rows=100)
    cells = micro.tokens.numel()
    assert f"trainer.token_budget = {cells // 2} (now 8192)" in list(remedies(config_of(tiny_model), CPU, micro))
    (first, *_) = remedies(config_of(tiny_model), CPU, micro_batch(rows=1))
    assert first == "trainer.token_budget = 2048 (now 8192)", "the context's length"
    at_the_floor = list(remedies(config_of(tiny_model, budget=2048), CPU, micro))
    assert not [said for said in at_the_floor if "token_budget" in said]
    assert "rollout.context_length" in at_the_floor[-1]


def test_what_is_on_already_is_not_advised(tiny_model):
    advice = list(remedies(config_of(tiny_model), CPU, micro_batch()))
    assert "trainer.activation_checkpointing = true" in advice
    advice = list(remedies(config_of(tiny_model, activation_checkpointing=True), CPU, micro_batch()))
    assert not [said for said in advice if "activation_checkpointing" in said]


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 80 GiB, of which engines hold 30 and torch 40 in pieces, as torch would tell of it."""
    told = {"mem_get_info": (10 << 30, 80 << 30), "memory_reserved": 40 << 30, "memory_allocated": 25 << 30}
    told["max_memory_allocated"] = 39 << 30
    for name, value in told.items():
        monkeypatch.setattr(out_of_memory.torch.cuda, name, lambda _device, value=value: value)
    return torch.device("cuda")


def test_of_a_gpu_it_is_told_who_holds_what_and_all_that_gives_some_back(tiny_model, gpu):
    said = out_of_memory.sentence("a micro-batch", config_of(tiny_model), gpu, micro_batch(), "CUDA out of memory.")
    assert "peak of this rank 39.0 GiB, 10.0 of 80.0 GiB free, 30.0 held by other processes" in said
    order = ["expandable_segments", "token_budget", "activation_checkpointing", "mem-fraction-static", "gather_every"]
    order += ["trainer.offload", "trainer.ranks = 2"]
    assert [said.index(word) for word in order] == sorted(said.index(word) for word in order)


def test_what_the_optimizer_lacks_no_smaller_micro_batch_makes_room_for(tiny_model, gpu):
    advice = list(remedies(config_of(tiny_model, gather_every="micro_batch"), gpu, None))
    assert not [said for said in advice if "token_budget" in said or "activation" in said or "gather_every" in said]
    assert "trainer.offload = true" in advice
