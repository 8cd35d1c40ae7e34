import json
import sys

import pytest

from pipeline.config import Config
from pipeline.config_file import load
from pipeline.data import cold_start_problems, evaluation_problems, training_problems
from pipeline.errors import ConfigError

SMALL = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def config(data, evaluation=None, cold_start=None):
    sections = {"run": {"name": "t"}, "model": {"tiny": {}}, "data": data}
    if evaluation:
        sections["eval"] = {"data": evaluation}
    if cold_start:
        sections["cold_start"] = {"problems": cold_start}
    return Config.model_validate(sections)


def questions(problems):
    return {problem["question"] for problem in problems}


def test_demo_problems_are_distinct_and_disjoint_from_the_evaluation():
    demo = load("pipeline/recipes/demo.toml")
    training, evaluation, cold_start = training_problems(demo), evaluation_problems(demo), cold_start_problems(demo)
    assert (len(training), len(evaluation), len(cold_start)) == (256, 128, 1024)
    for problems in (training, evaluation, cold_start):
        assert len(questions(problems)) == len(problems) == len({problem["id"] for problem in problems})
    assert not questions(evaluation) & (questions(training) | questions(cold_start))
    assert cold_start[:128] != training[:128]


def test_the_same_seed_gives_the_same_problems_and_survives_json():
    settings = config({"size": 10, "tasks": {"chain_sum": {}, "gcd": {}}})
    problems = training_problems(settings)
    assert problems == training_problems(settings) == json.loads(json.dumps(problems))
    assert [problem["task"] for problem in problems] == ["chain_sum"] * 5 + ["gcd"] * 5


def test_overlap_with_the_same_seed_is_removed():
    settings = config({"size": 20, "tasks": {"products": SMALL}}, {"size": 20, "tasks": {"products": SMALL}})
    assert not questions(training_problems(settings)) & questions(evaluation_problems(settings))


def test_a_task_too_small_for_its_size_is_refused_with_what_to_do():
    settings = config({"size": 90, "tasks": {"products": SMALL}}, {"size": 60, "tasks": {"products": SMALL}})
    with pytest.raises(ConfigError, match=r"data\.tasks\.products: expected 90 distinct .* lower data\.size"):
        training_problems(settings)


def test_unknown_task_and_unknown_parameter_are_refused():
    with pytest.raises(ConfigError, match=r"data\.tasks\.nosuch"):
        training_problems(config({"tasks": {"nosuch": {}}}))
    with pytest.raises(ConfigError, match=r"data\.tasks\.gcd"):
        training_problems(config({"tasks": {"gcd": {"colour": 3}}}))


def test_a_file_keeps_its_own_keys_and_loses_repeated_and_evaluated_questions(tmp_path):
    rows = [{"question": "1+1?", "answer": "2", "hint": [1]}, {"question": " 1+1? "}, {"question": "2+2?", "id": 7}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "held.jsonl").write_text(json.dumps({"question": "2+2?"}))
    problems = training_problems(config({"path": tmp_path / "train.jsonl"}))
    assert problems == [rows[0] | {"id": "train-1"}, rows[2] | {"id": "7"}]
    held_out = config({"path": tmp_path / "train.jsonl"}, {"path": tmp_path / "held.jsonl"})
    assert training_problems(held_out) == problems[:1]


def test_the_answer_proper_is_what_follows_the_last_mark_in_a_solution(tmp_path):
    solution = "48/2 = <<48/2=24>>24 clips in May; 48+24 = 72.\n#### 1,072"
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "How many?", "answer": solution}))
    (problem,) = training_problems(config({"path": tmp_path / "train.jsonl", "answer_after": "####"}))
    assert (problem["answer"], problem["solution"]) == ("1,072", solution)


@pytest.mark.parametrize("answer", ['"72"', '"72 ####  "', "72", "null"])
def test_an_answer_without_its_mark_is_reported_by_its_line(tmp_path, answer):
    lines = ['{"question": "a", "answer": "#### 1"}', f'{{"question": "b", "answer": {answer}}}']
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=r"train\.jsonl, line 2: expected \"answer\" to end with '####'"):
        training_problems(config({"path": tmp_path / "train.jsonl", "answer_after": "####"}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: not valid JSON"),
        ('{"answer": "2"}', 'line 1: expected an object with a string "question"'),
        ('{"question": "a", "id": 1}\n{"question": "b", "id": "1"}', "line 2: the id '1' is used twice"),
    ],
)
def test_a_broken_file_names_its_line(tmp_path, text, message):
    path = tmp_path / "train.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        training_problems(config({"path": path}))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected a JSONL file"):
        training_problems(config({"path": tmp_path / "none.jsonl"}))


def test_tasks_without_reasoning_gym_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[rollout\]', or set data.path"):
        training_problems(config({"size": 10, "tasks": {"chain_sum": {}}}))
