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


def test_games_of_number_guessing_are_a_task_too_and_its_cold_start_has_others():
    settings = config({"size": 40, "tasks": {"number_guessing": {}}}, cold_start=40)
    problems = training_problems(settings)
    assert problems == training_problems(settings) and len(questions(problems)) == 40
    assert not questions(problems) & questions(cold_start_problems(settings))
    with pytest.raises(ConfigError, match=r"data\.tasks\.number_guessing has no parameters, found \{'turns': 3\}"):
        training_problems(config({"tasks": {"number_guessing": {"turns": 3}}}))


def test_a_file_keeps_its_own_keys_and_loses_repeated_and_evaluated_questions(tmp_path):
    rows = [{"question": "1+1?", "answer": "2", "hint": [1]}, {"question": " 1+1? "}, {"question": "2+2?", "id": 7}]
    rows = [row | {"answer": "2"} for row in rows]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "held.jsonl").write_text(json.dumps({"question": "2+2?", "answer": 4}))
    problems = training_problems(config({"path": tmp_path / "train.jsonl"}))
    assert problems == [rows[0] | {"id": "train-1"}, rows[2] | {"id": "7"}]
    held_out = config({"path": tmp_path / "train.jsonl"}, {"path": tmp_path / "held.jsonl"})
    assert training_problems(held_out) == problems[:1]


def test_rows_that_cannot_be_used_are_reported_by_line_and_the_others_are_used(tmp_path, caplog):
    path = tmp_path / "train.jsonl"
    lines = ['{"question": "a", "answer": 1}', "{", "[1]", '{"question": "b"}', '{"answer": "2"}']
    lines += ['{"question": "c", "id": "train-1", "answer": 2}', "", '{"question": "d", "answer": "3"}']
    path.write_text("\n".join(lines))
    problems = training_problems(config({"path": path}))
    assert [(p["id"], p["question"]) for p in problems] == [("train-1", "a"), ("train-8", "d")]
    (report,) = (record.message for record in caplog.records)
    assert report.startswith(f"data.path = {path}: 5 of 7 rows cannot be used; line 2: not valid JSON: Expecting")
    assert "; line 3: expected a JSON object, found [1]; line 4: expected an " in report
    assert report.endswith("; and 2 more")


def test_a_file_without_any_row_that_can_be_used_is_refused_with_the_reasons(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": " "}\n{"question": "b"}\n')
    with pytest.raises(ConfigError, match=r'no row can be used; line 1: expected "question" to be text.*; line 2: exp'):
        training_problems(config({"path": path}))
    path.write_text("\n")
    with pytest.raises(ConfigError, match="no row can be used; it is empty"):
        training_problems(config({"path": path}))


def test_an_id_that_is_used_twice_counts_once(tmp_path, caplog):
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "a", "id": 1, "answer": 1}\n{"question": "b", "id": "1", "answer": 1}')
    assert [p["question"] for p in training_problems(config({"path": path}))] == ["a"]
    assert "line 2: the id '1' is that of line 1; give each problem its own" in caplog.text


def test_duplicate_questions_are_reported(tmp_path, caplog):
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(json.dumps({"question": q, "answer": 1}) for q in ("What  is it?", "b", "what is IT?")))
    assert len(training_problems(config({"path": path}))) == 2
    assert "1 of 3 rows are duplicates; line 3 asks what line 1 does" in caplog.text


def test_a_users_own_environment_needs_no_answers(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "a", "number": 7}')
    sections = {"run": {"name": "t"}, "model": {"tiny": {}}, "data": {"path": path}}
    own = Config.model_validate(sections | {"environment": {"name": "mine.py:Mine"}})
    assert training_problems(own) == [{"question": "a", "number": 7, "id": "train-1"}]
    with pytest.raises(ConfigError, match='line 1: expected an "answer"'):
        training_problems(Config.model_validate(sections))


def test_reading_ends_when_there_is_enough(tmp_path, caplog):
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(['{"question": "a", "answer": 1}', '{"question": "b", "answer": 1}', "broken"]))
    assert len(training_problems(config({"path": path, "size": 2}))) == 2
    assert caplog.text == ""
    path.write_text("\n".join(["{", '{"question": "b", "answer": 1}', "broken"]))
    assert len(training_problems(config({"path": path, "size": 1}))) == 1
    assert "1 of the first 2 rows cannot be used; line 1" in caplog.text


def test_tasks_without_reasoning_gym_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[rollout\]', or set data.path"):
        training_problems(config({"size": 10, "tasks": {"chain_sum": {}}}))
