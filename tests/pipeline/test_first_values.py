"""First values: what is kept of them, and what another run may take."""

import json
import random

import pytest

from pipeline import first_values, jsonl
from pipeline.config import Config
from pipeline.data import training_problems
from pipeline.errors import ConfigError
from pipeline.watch import first_prompts
from pipeline.weights import write_manifest

TASK = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}


def make_run(folder, name, tensors=b"tensors", probe=(1, 2), **sections) -> Config:
    """A run with version 0, of which two files are there."""
    base = {
        "run": {"name": name, "folder": str(folder)},
        "model": {"tiny": {}},
        "data": {"size": 12, "tasks": {"chain_sum": TASK}},
        "advantage": {"offline_rollouts": 4},
    }
    config = Config.model_validate({key: base.get(key, {}) | sections.get(key, {}) for key in base | sections})
    weights = config.folder / "weights" / "0"
    weights.mkdir(parents=True)
    (weights / "model.safetensors").write_bytes(tensors)
    (weights / "tokenizer.json").write_text(name)  # is none of the policy
    write_manifest(weights, 0, probe, [-1.0], "float32")
    return config


@pytest.fixture
def played(tmp_path):
    """A run whose first values are played; problem k has k % 5 successes of 4."""
    config = make_run(tmp_path, "first")
    first_values.begin(config)
    problems = training_problems(config)
    for number, problem in random.Random(1).sample(list(enumerate(problems)), len(problems)):
        first_values.add(config, problem, [1.0] * (number % 5) + [0.0] * (4 - number % 5))
    assert first_values.missing(config) == []
    return config


def another(tmp_path, played, **sections):
    advantage = {"offline_rollouts": 4, "values": str(played.folder)} | sections.pop("advantage", {})
    return make_run(tmp_path, "second", probe=(3, 4), advantage=advantage, **sections)


def test_a_run_that_begins_with_the_same_model_takes_the_values_of_another(tmp_path, played):
    config = another(tmp_path, played)
    first_values.take(config)
    assert first_values.missing(config) == []
    assert first_values.outcomes(config) == first_values.outcomes(played)
    ids = [problem["id"] for problem in training_problems(config)]
    assert [line["id"] for line in jsonl.read(config.folder / "values.jsonl")] == ids
    about = json.loads((config.folder / "values.json").read_text())
    assert about["taken_from"] == str(played.folder / "values.jsonl")
    first_values.begin(config)  # it is its own from here on


def test_the_file_may_be_named_in_place_of_the_folder_and_hold_more_prompts_than_are_asked_for(tmp_path, played):
    file = str(played.folder / "values.jsonl")
    config = another(tmp_path, played, advantage={"values": file}, data={"size": 5})
    first_values.take(config)
    assert len(first_values.outcomes(config)) == 5


def test_the_ledgers_first_evidence_is_jeffreys_smoothed_with_mass_8(tmp_path, played):
    config = another(tmp_path, played)
    first_values.take(config)
    for number, prompt in enumerate(first_prompts(config)):
        s = number % 5
        assert (prompt["alpha"], prompt["beta"]) == pytest.approx((8 * (s + 0.5) / 5, 8 * (4 - s + 0.5) / 5))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"data": {"size": 14}}, r"of 2 of the 14 prompts, as they are here: chain_sum-\d+, chain_sum-\d+; "),
        ({"data": {"seed": 9}}, r"of 12 of the 12 prompts, as they are here: .* …; "),
        ({"advantage": {"offline_rollouts": 8}}, r"has no 8 outcomes \(advantage\.offline_rollouts\) of 12 of the 12"),
        (
            {"rollout": {"temperature": 0.7}},
            r"other settings than this run's\n    rollout\.temperature: 1\.0 there, 0",
        ),
        ({"environment": {"max_turns": 2}}, r"environment\.max_turns: 4 there, 2 here"),
        (
            {"tensors": b"others"},
            r"other weights \([0-9a-f]{16}\) than this run's version 0 \([0-9a-f]{16}\); start",
        ),
    ],
)
def test_values_that_say_nothing_of_this_run_are_refused_with_what_differs(tmp_path, played, sections, said):
    config = another(tmp_path, played, **sections)
    with pytest.raises(ConfigError, match=said):
        first_values.take(config)
    assert not (config.folder / "values.jsonl").exists()


def test_values_that_are_not_there_or_without_what_they_were_measured_with_are_refused(tmp_path, played):
    config = another(tmp_path, played, advantage={"values": str(tmp_path / "nowhere")})
    with pytest.raises(ConfigError, match=r"advantage\.values: no file .*nowhere; expected a run's folder, or"):
        first_values.source(config)
    (played.folder / "values.json").unlink()
    config = config.model_copy(update={"advantage": config.advantage.model_copy(update={"values": played.folder})})
    with pytest.raises(ConfigError, match=r"values\.json: expected what the values beside it were measured with"):
        first_values.source(config)


def test_a_problem_whose_text_has_changed_is_played_again(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps({"question": f"{n}?", "answer": str(n)}) + "\n" for n in range(3)))
    config = make_run(tmp_path, "file", data={"path": str(file), "tasks": {}})
    first_values.begin(config)
    for problem in training_problems(config):
        first_values.add(config, problem, [0.0] * 4)
    file.write_text(file.read_text().replace("1?", "one?"))
    assert [problem["question"] for problem in first_values.missing(config)] == ["one?"]


def test_values_of_another_version_0_in_the_runs_own_folder_are_not_added_to(tmp_path, played):
    weights = played.folder / "weights" / "0"
    (weights / "model.safetensors").write_bytes(b"made anew")
    write_manifest(weights, 0, (1, 2), [-1.0], "float32")
    with pytest.raises(ConfigError, match=r"of another version 0: delete them\n    weights: "):
        first_values.begin(played)


def test_without_version_0_there_is_nothing_to_measure(tmp_path, played):
    config = another(tmp_path, played)
    (config.folder / "weights" / "0" / "manifest.json").unlink()
    with pytest.raises(ConfigError, match=r"version 0 is not made yet .*`headrace cold-start RUN\.toml` makes it"):
        first_values.begin(config)


def test_the_summary_counts_prompts_by_their_successes(played):
    summary = first_values.summary(played)
    assert [row["prompts"] for row in summary["histogram"]] == [3, 3, 2, 2, 2]
    assert (summary["prompts"], summary["rollouts"], summary["none"], summary["all"]) == (12, 4, 3, 2)
    assert summary["success"] == pytest.approx((0 * 3 + 1 * 3 + 2 * 2 + 3 * 2 + 4 * 2) / 48)
