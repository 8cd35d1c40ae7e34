"""A run with other settings goes on from another run's checkpoint: its policy, and what is known of the prompts."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from pipeline import checkpoint_folder, first_values, weights
from pipeline.config_file import load
from pipeline.errors import ConfigError
from pipeline.fork import fork
from pipeline.watch import first_prompts
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import recorded, train


class OfItsProblems(Producer):
    """Its prompts are those of the run's data, as the coordinator adds them."""

    def create(self):
        super().create(first_prompts(self.config))


@pytest.fixture
def parent(client, run, tmp_path):
    """Four updates, with checkpoints 2 and 4; and the evidence that the last one has."""
    config = make_run(tmp_path, run)
    with OfItsProblems(client, config):
        train(config, client)
    return config, checkpoint_folder.read_prompts(config.folder / "checkpoints")


def child_of(config, *overrides, version=None):
    told = fork(str(config.folder), version, overrides)
    return load(config.run.folder / told["run"] / "run.toml"), told


def tensors(folder):
    return load_file(folder / "model.safetensors")


def published(config, version):
    return next(path for path in weights.published(config.folder / "weights") if path.name.startswith(str(version)))


def test_a_fork_goes_on_with_policy_optimizer_and_evidence_and_its_own_settings(client, parent):
    config, evidence = parent
    changed = ("optimizer.lr=1e-4", "optimizer.weight_decay=0.05", "buffers.max_staleness=1", "run.total_steps=2")
    child, told = child_of(config, *changed)
    assert child.run.name == f"{config.run.name}-4" and child.run.parent == told["parent"]
    assert told["optimizer"] == "goes on" and told["values"] == "of 16 prompts go along"
    assert weights.verify_files(child.model_path).version == 0
    assert first_values.missing(child) == []
    producer = OfItsProblems(client, child)
    first = {prompt["id"]: prompt["value"] for prompt in producer.ledger.prompts()}
    with producer:
        trainer = train(child, client)
    assert first == {id: pytest.approx(p["alpha"] / (p["alpha"] + p["beta"])) for id, p in evidence.items()}
    before, after = tensors(published(config, 4)), tensors(child.model_path)
    assert all(torch.equal(before[name], after[name]) for name in before)
    steps = {int(state["step"]) for state in trainer.updater.optimizer.state.values()}
    assert steps == {6}, "four of the parent's and two of its own"
    assert [line["lr"] for line in recorded(child)] == [1e-4, 1e-4]
    assert {(group["lr"], group["weight_decay"]) for group in trainer.updater.optimizer.param_groups} == {(1e-4, 0.05)}


def test_evidence_is_as_faded_as_it_was(parent):
    """Of a fork from checkpoint 4, policy event 4: what was finished before has faded by ρ for each event since."""
    config, kept = parent
    child, _ = child_of(config)
    found, rho = checkpoint_folder.read_prompts(child.folder / "checkpoints"), config.advantage.rho
    assert len({prompt["event"] for prompt in kept.values()}) > 1
    for id, prompt in found.items():
        faded = rho ** (3 - kept[id]["event"])  # version 4 is not out when checkpoint 4 is written
        assert (prompt["alpha"], prompt["event"]) == (pytest.approx(kept[id]["alpha"] * faded), 0)


def test_a_fork_of_a_version_whose_weights_are_gone_has_them_from_its_checkpoint(parent):
    config, _ = parent
    expected = tensors(published(config, 2))
    weights.retain(config.folder / "weights", {0, 4})
    child, _ = child_of(config, "model.dtype=bfloat16", "run.name=half", version=2)
    found = tensors(child.model_path)
    assert all(torch.equal(found[name], expected[name].bfloat16()) for name in expected)
    assert len(weights.read_manifest(child.model_path).probe_logprobs) == 31


def test_what_the_new_settings_make_worthless_is_left_behind(client, parent):
    config, _ = parent
    child, told = child_of(
        config, "optimizer.betas=[0.8, 0.99]", "rollout.temperature=0.5", "loss.kl=0.1", "run.total_steps=1"
    )
    assert told["optimizer"].startswith("begins anew") and told["values"] == "played by version 0"
    assert len(first_values.missing(child)) == 16
    with OfItsProblems(client, child):
        trainer = train(child, client)
    assert {int(state["step"]) for state in trainer.updater.optimizer.state.values()} == {1}
    assert recorded(child)[0]["kl"] == pytest.approx(0, abs=1e-6), "the reference is the policy that it began with"


@pytest.mark.parametrize(
    "overrides, expected",
    [
        (["run.name=taken"], "exists; give the new run another name"),
        (["model.path=elsewhere"], "begins with the policy of its parent"),
        (["cold_start.problems=8"], "begins with a policy that is trained already"),
        (["optimizer.lrr=1"], "did you mean 'lr'"),
    ],
)
def test_a_fork_that_cannot_be_is_refused_and_leaves_nothing(parent, overrides, expected):
    config, _ = parent
    (config.run.folder / "taken").mkdir()
    with pytest.raises(ConfigError, match=expected):
        child_of(config, *overrides)
    with pytest.raises(ConfigError, match="there are: 2, 4"):
        child_of(config, version=3)
    assert sorted(path.name for path in config.run.folder.iterdir()) == sorted([config.run.name, "taken"])


def test_a_fork_begins_with_no_optimizer_step_that_was_skipped(parent):
    checkpoint = parent[0].folder / "checkpoints" / "4"
    checkpoint_folder.write_state(checkpoint, checkpoint_folder.read_state(checkpoint) | {"skipped_in_a_row": 3})
    child, _ = child_of(parent[0], "optimizer.lr=1e-5")
    assert checkpoint_folder.read_state(child.folder / "checkpoints" / "0")["skipped_in_a_row"] == 0


def test_a_damaged_checkpoint_is_not_forked_from(parent):
    config, _ = parent
    with (config.folder / "checkpoints" / "4" / "__0_0.distcp").open("ab") as file:
        file.write(b"x")
    with pytest.raises(checkpoint_folder.DamagedCheckpoint, match=r"__0_0\.distcp is not what was written"):
        child_of(config)
    assert not list(config.run.folder.glob(".*"))


def test_changed_settings_are_refused_with_the_command_that_makes_a_fork(parent):
    config, _ = parent
    command = [sys.executable, "-m", "pipeline.cli", "train", str(config.folder / "run.toml"), "optimizer.lr=1e-4"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"headrace fork {config.run.name} --from 4 optimizer.lr=0.0001" in done.stderr


def test_the_command_line_says_what_goes_along_and_how_to_go_on(parent):
    config, _ = parent
    command = [sys.executable, "-m", "pipeline.cli", "fork", str(config.folder), "--from", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["next"] == f"headrace up {config.run.folder / told['run'] / 'run.toml'}"
