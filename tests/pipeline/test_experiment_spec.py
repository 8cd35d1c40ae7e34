"""An experiment's file: which runs it makes, and what it may not change."""

from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.experiment_spec import read
from pipeline.keys import run

SPEC = """
name = "ablation"
recipe = "guessing"
seeds = [1, 2]
baseline = "trajectory"

[methods.trajectory]
advantage.normalization = "trajectory"
[methods.token]

[settings.fresh]
[settings.stale]
buffers.max_staleness = 2
trainer.minibatches = 4
"""


@pytest.fixture
def spec(tmp_path):
    def write(text=SPEC, *overrides):
        (tmp_path / "spec.toml").write_text(text)
        return read(tmp_path / "spec.toml", overrides)

    return write


def test_a_run_is_made_for_each_seed_setting_and_method_and_pairs_come_early(spec):
    experiment = spec()
    assert [trial.name for trial in experiment.trials[:5]] == [
        "ablation.fresh.trajectory.1",
        "ablation.fresh.token.1",
        "ablation.stale.trajectory.1",
        "ablation.stale.token.1",
        "ablation.fresh.trajectory.2",
    ]
    assert len(experiment.trials) == 8


def test_runs_differ_in_what_is_compared_alone(spec):
    experiment = spec()
    fresh, stale = experiment.trials[0].config, experiment.trials[3].config
    assert {line.partition(":")[0] for line in fresh.differences(stale)} == {
        "run.name",
        "advantage.normalization",
        "buffers.max_staleness",
        "trainer.minibatches",
    }
    again = {line.partition(":")[0] for line in fresh.differences(experiment.trials[4].config)}
    assert again == {"run.name", "run.seed"}


def test_every_run_begins_with_version_0_and_the_first_values_of_the_start(spec):
    experiment = spec()
    start = experiment.start
    assert str(start.folder) == "runs/ablation/start" and start.cold_start and start.model.tiny
    for trial in experiment.trials:
        config = trial.config
        assert config.cold_start is None and config.model.tiny is None
        assert config.model.path == start.folder / "weights" / "0" and config.advantage.values == start.folder
        assert config.folder == start.run.folder / trial.name


def test_two_experiments_never_meet_in_one_redis(spec):
    there, here = spec(), spec(SPEC.replace('name = "ablation"', 'name = "again"'))
    keys = [{run(trial.name) for trial in experiment.trials} for experiment in (there, here)]
    assert "hr:{again.stale.token.2}" in keys[1] and not keys[0] & keys[1]


def test_what_stands_behind_the_command_is_of_all_runs(spec):
    experiment = spec(SPEC, "run.total_steps=3", "optimizer.lr=0.1")
    assert experiment.budget == 3
    assert {(t.config.run.total_steps, t.config.optimizer.lr) for t in experiment.trials} == {(3, 0.1)}


def test_a_recipe_without_first_values_has_none_to_take(spec):
    experiment = spec(SPEC, "advantage.offline_rollouts=0")
    assert {trial.config.advantage.values for trial in experiment.trials} == {None}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "[methods.token]",
            "[methods.token]\nrollout.temperature = 0.7",
            r"methods\.token: rollout\.temperature is the",
        ),
        ("[methods.token]", "[methods.token]\nrun.total_steps = 60", r"run\.total_steps is the same for all runs"),
        ("[settings.fresh]", "[settings.fresh]\nadvantage.offline_rollouts = 1", "begin and play alike"),
        ("[methods.token]", "[methods.token]\nbuffers.batch_size = 32", "trains on 32 trajectories an update, the "),
        ("[methods.token]", "[methods.token]\ntrainer.minibatches = 2", "and settings.stale both set trainer.mini"),
        ("[methods.token]", "[methods.token]\nadvantage.normalisation = 'token'", "did you mean 'normalization'"),
        ("[methods.token]", "[methods.token]\ntrainer.minibatches = 65", "fresh.token.1: trainer.minibatches = 65"),
        ('recipe = "guessing"', 'recipe = "guesing"', "recipe = 'guesing': there are .*dapo"),
        ('recipe = "guessing"', "", "expected one of recipe"),
        ('recipe = "guessing"', 'recipe = "guessing"\nrun = "mine.toml"', "expected one of recipe"),
        ('recipe = "guessing"', 'run = "mine.toml"', r"mine\.toml: no such file"),
        ("seeds = [1, 2]", "seeds = [1, 1]", "a seed is there twice"),
        ("seeds = [1, 2]", "seeds = []", "seeds: list should have at least 1 item"),
        ('baseline = "trajectory"', 'baseline = "spo"', "baseline = 'spo' is no method; there are trajectory, token"),
        ('name = "ablation"', 'name = "a/b"', "name: string should match"),
        ('name = "ablation"', 'name = "a.b"', r"'a.b': expected no dot; a run is \{name\}.\{setting\}"),
        ('name = "ablation"', f'name = "{46 * "n"}"', "nn.fresh.trajectory.1' is no name of a run: .* 64 .*, found 65"),
        ("[settings.fresh]", "[settings.'new one']", "'ablation.new one.trajectory.1' is no name of a run"),
        ('name = "ablation"', 'name = "ablation"\nsedes = 1', "sedes: unknown key; did you mean 'seeds'"),
        ("[methods.token]", "[methods.", "not valid TOML"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_starts(spec, old, new, said):
    assert SPEC.count(old) == 1
    with pytest.raises(ConfigError, match=said):
        spec(SPEC.replace(old, new))


@pytest.mark.parametrize("name", ["guessing-ablation", "guessing-spo"])
def test_the_experiments_that_come_along_have_eight_seeds_and_differ_in_their_methods(name):
    experiment = read(Path(__file__).parents[2] / "experiments" / f"{name}.toml")
    assert len(experiment.spec.seeds) == 8 and experiment.budget == 30
    per_seed = len(experiment.spec.settings) * len(experiment.spec.methods)
    assert len(experiment.trials) == 8 * per_seed
