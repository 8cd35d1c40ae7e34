"""However a model lies on four ranks, an update, a checkpoint and a publication are those of one rank."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3Config

from pipeline.config import Trainer
from tests.trainer import layouts
from tests.trainer.gradients import distance
from tests.trainer.layouts import LAYOUTS
from trainer.ranks import joined

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
OTHERS = {
    "rows that four ranks cannot share evenly": Qwen3Config(
        **SMALL, num_hidden_layers=1, head_dim=16, vocab_size=321, tie_word_embeddings=True
    ),
    "experts that transformers joins": MixtralConfig(**SMALL, num_hidden_layers=1, vocab_size=320, num_local_experts=4),
    "large": Qwen3Config(
        **SMALL | {"hidden_size": 1024}, num_hidden_layers=1, head_dim=16, vocab_size=20_000, tie_word_embeddings=True
    ),
}
UNITS = 3  # two layers, and the root: each is gathered by one collective


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    for name, config in OTHERS.items():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def four_ranks(tiny_model, others, tmp_path_factory):
    """The folder of what they found."""
    out = tmp_path_factory.mktemp("four")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", layouts.__file__]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(layouts.__file__).parents[2])}
    command = [*launch, str(out), str(tiny_model), *(str(others / name) for name in OTHERS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return out, done.stderr


@pytest.fixture(scope="module")
def found(four_ranks):
    return {layout: torch.load(four_ranks[0] / f"{number}.pt") for number, layout in enumerate(LAYOUTS)}


@pytest.fixture(scope="module")
def one_rank(tiny_model):
    with joined(Trainer()) as ranks:
        return layouts.update(ranks, tiny_model, {})[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_four_ranks_equal_one_however_the_model_lies_on_them(found, one_rank, layout):
    rounding = 0.05 if layout == "computed in bfloat16" else 1e-5
    assert found[layout]["loss"] == pytest.approx(one_rank["loss"], rel=rounding)
    assert distance(found[layout]["gradients"], one_rank["gradients"]) < rounding
    assert distance(found[layout]["weights"], one_rank["weights"]) < rounding


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_gathers_and_reduces_once_whatever_its_micro_batches(found, layout):
    """Else each micro-batch does, and layers are gathered for its backward pass once more."""
    seen = found[layout]
    assert seen["micro_batches"] == 3
    if layout == "gathered for each micro-batch":
        assert (seen["gathers"], seen["reductions"]) == (3 * (2 * UNITS - 1), 3 * UNITS)
    else:
        assert (seen["gathers"], seen["reductions"]) == (UNITS, UNITS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_rank_keeps_its_part_in_float32_and_tied_weights_once(found, tiny_model, layout):
    seen = found[layout]
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    whole = sum(parameter.numel() for parameter in model.parameters())
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert seen["kept"] == {("torch.float32", "torch.float32", "cpu")}
    assert sum(seen["elements"]) == whole * LAYOUTS[layout].get("replicas", 1)
    assert max(seen["elements"]) == min(seen["elements"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_of_one_layout_is_read_by_another_bit_for_bit(found, layout):
    assert found[layout]["reads back"]


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_what_is_published_is_what_the_ranks_have_together(four_ranks, found, number):
    model = AutoModelForCausalLM.from_pretrained(four_ranks[0] / f"weights-{number}")
    expected = found[list(LAYOUTS)[number]]["weights"]
    assert all(torch.equal(parameter, expected[name]) for name, parameter in model.named_parameters())


@pytest.mark.parametrize("name", OTHERS)
def test_four_ranks_read_the_weights_that_transformers_reads(four_ranks, others, name):
    model = AutoModelForCausalLM.from_pretrained(others / name, dtype=torch.float32)
    read = torch.load(four_ranks[0] / f"{name}.pt")["weights"]
    assert read.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(parameter, read[name]) for name, parameter in model.named_parameters())


def test_names_that_transformers_converts_are_said_to_be_read_whole(four_ranks):
    said = [line for line in four_ranks[1].splitlines() if "rank 0 reads all of them" in line]
    assert len(said) == 1 and "names its weights otherwise than a mixtral model" in said[0]


def test_no_rank_has_the_whole_model_while_it_reads_its_part(four_ranks, others):
    """A quarter in float32, and of the file, in 16 bits, the pages of that quarter."""
    model = AutoModelForCausalLM.from_pretrained(others / "large")
    whole = sum(4 * parameter.numel() for parameter in model.parameters())
    assert 0.2 * whole < torch.load(four_ranks[0] / "large.pt")["peak"] < 0.6 * whole
