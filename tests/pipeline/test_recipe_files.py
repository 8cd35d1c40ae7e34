"""Recipes: each is a run that could start, and says where it comes from and what it costs."""

import pytest

from advantage import BY_GROUP, ESTIMATORS
from pipeline.config_file import load, to_toml
from pipeline.config_rules import unwise
from pipeline.errors import ConfigError
from pipeline.recipe_files import described, recipes, whole, write

TRAINED = "3,840 trajectories in 60 updates"


@pytest.fixture
def config(tmp_path):
    return lambda recipe: load(write("mine", recipe, tmp_path))


def on_the_demo_task():
    return [recipe for recipe in recipes() if whole(recipe)["data"] == whole("demo")["data"]]


@pytest.mark.parametrize("recipe", recipes())
def test_every_recipe_can_start_and_nothing_in_it_is_unwise(config, recipe):
    assert list(unwise(config(recipe))) == []


@pytest.mark.parametrize("recipe", recipes())
def test_every_recipe_reads_back_equal_once_it_is_resolved(config, recipe, tmp_path):
    (tmp_path / "resolved.toml").write_text(to_toml(config(recipe)))
    assert load(tmp_path / "resolved.toml") == load(tmp_path / "mine.toml")


def test_every_algorithm_has_a_recipe_on_the_demo_task(config, tmp_path):
    found = set()
    for recipe in on_the_demo_task():
        found.add(config(recipe).advantage.algorithm)
        (tmp_path / "mine.toml").unlink()
    assert found == set(ESTIMATORS)


@pytest.mark.parametrize("recipe", on_the_demo_task())
def test_recipes_on_the_demo_task_cost_as_many_trajectories_as_they_say_and_name_their_source(config, recipe):
    found = config(recipe)
    prompts, each, updates = found.buffers.batch_size, found.buffers.group_size, found.run.total_steps
    (about,) = [row["about"] for row in described() if row["recipe"] == recipe]
    assert f"{prompts} prompts × {each} trajector" in about and "(arXiv 2" in about
    assert f"{prompts * each * updates:,} trajectories in {updates} updates" == TRAINED in about


@pytest.mark.parametrize("recipe", on_the_demo_task())
def test_only_what_reads_values_draws_by_them_or_spends_rollouts_on_them(config, recipe):
    found = config(recipe).advantage
    values = found.algorithm in ("spo++", "spo")
    assert (found.sampler == "uncertainty") == (found.offline_rollouts > 0) == values


@pytest.mark.parametrize("recipe", on_the_demo_task())
def test_recipes_on_the_demo_task_differ_in_their_algorithm_alone(config, recipe, tmp_path):
    found = config(recipe)
    changed = {line.split(":")[0] for line in load(write("demo", "demo", tmp_path)).differences(found)}
    groups = {"buffers.batch_size", "buffers.group_size", "buffers.filter_metric"}
    own = {"run.name", "trainer.minibatches"} | (groups if found.advantage.algorithm in BY_GROUP else set())
    assert {name for name in changed if not name.startswith(("advantage.", "loss."))} <= own


def test_the_settings_of_a_recipe_are_its_own_before_they_are_its_bases(config):
    found = config("grpo")
    assert (found.advantage.algorithm, found.buffers.batch_size, found.loss.kl) == ("grpo", 8, 0.04)
    assert (found.model.tiny.layers, found.buffers.max_staleness, found.optimizer.lr) == (2, 2, 2e-4)


def test_a_file_written_from_a_recipe_is_whole_and_keeps_the_comments_of_both(tmp_path):
    text = write("mine", "grpo", tmp_path).read_text()
    assert text.startswith("# GRPO (arXiv 2402.03300)") and "Multi-turn math" not in text
    assert "base =" not in text and 'name = "mine"' in text and text.endswith("\n") and not text.endswith("\n\n")
    assert "# share of the scripted traces that answer without the tool" in text  # of the demo
    assert "# nobody reads values" in text  # of the recipe


def test_a_recipe_without_a_base_is_written_as_it_is_but_for_its_name(tmp_path):
    text = write("mine", "demo", tmp_path).read_text()
    assert text.replace('name = "mine"', 'name = "demo"') == recipes()["demo"].read_text()


def test_a_recipe_that_is_only_a_part_says_how_to_get_the_whole():
    with pytest.raises(
        ConfigError, match=r"only what differs from the recipe 'demo'; `headrace init NAME --recipe grpo`"
    ):
        load(str(recipes()["grpo"]))


def test_a_name_with_a_folder_in_it_is_no_runs_name(tmp_path):
    with pytest.raises(ConfigError, match=r"'sub/mine' is no run's name: expected letters"):
        write("sub/mine", "demo", tmp_path)
