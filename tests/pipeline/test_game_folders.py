import json
from pathlib import Path

import pytest

from pipeline import game_folders
from pipeline.config import Config
from pipeline.data import evaluation_problems, file_problems, training_problems, training_texts
from pipeline.errors import ConfigError

PROBLEM = """(:objects agent1 - agent
        Sofa_bar__minus_01 - receptacle
        Sink_bar__plus_02_bar_SinkBasin - receptacle
        Laptop_bar_1 - object)"""


def write(folder, name, solvable=True, sentence="put some laptop on sofa"):
    place = folder / name
    place.mkdir(parents=True)
    game = {"grammar": f'"rhs": "Your task is to: {sentence}."', "pddl_problem": PROBLEM, "solvable": solvable}
    (place / "game.tw-pddl").write_text(json.dumps(game))
    (place / "traj_data.json").write_text(json.dumps({"task_type": name.partition("-")[0]}))


def names(kind, count):
    return [f"{kind}-Laptop-None-Sofa-229/trial_T1_{number:06}" for number in range(count)]


def config(tmp_path, **data):
    return Config.model_validate(
        {
            "run": {"name": "games"},
            "model": {"tiny": {}},
            "data": {"path": str(tmp_path / "train")} | data,
            "environment": {"name": "alfworld", "max_turns": 50},
            "eval": {"data": {"path": str(tmp_path / "valid_unseen")}},
        }
    )


def test_a_game_is_a_problem_whose_question_says_task_and_room(tmp_path):
    write(tmp_path, "pick_and_place_simple-Laptop-None-Sofa-229/trial_T1_000000")
    (problem,) = file_problems(tmp_path)
    assert problem.pop("question").rpartition(" ")[0] == (
        "You are in the middle of a room. Looking quickly around you, you see a sofa 1, a sinkbasin 1.\n\n"
        "Your task is to: put some laptop on sofa. Game"
    )
    assert problem == {
        "id": "pick_and_place_simple-Laptop-None-Sofa-229/trial_T1_000000",
        "task": "pick_and_place_simple",
        "game": f"{tmp_path}/pick_and_place_simple-Laptop-None-Sofa-229/trial_T1_000000/game.tw-pddl",
    }


def test_what_games_can_say_is_text_for_a_tokenizer(tmp_path):
    write(tmp_path / "train", names("pick_a", 1)[0])
    write(tmp_path / "valid_unseen", names("pick_b", 1)[0], sentence="never told to the tokenizer")
    question, *said = training_texts(config(tmp_path))
    assert question == training_problems(config(tmp_path))[0]["question"]
    assert said == ["Your task is to: put some laptop on sofa.", " a laptop 1"]


def test_a_part_of_a_folder_has_tasks_of_all_kinds_and_trials_of_one_task_are_different_problems(tmp_path):
    for split, count in {"train": 40, "valid_unseen": 5}.items():
        for kind in ("pick_a", "pick_b", "pick_c"):
            for name in names(kind, count):
                write(tmp_path / split, name)
    found = training_problems(config(tmp_path, size=30))
    assert len(found) == 30 and {problem["task"] for problem in found} == {"pick_a", "pick_b", "pick_c"}
    assert found == training_problems(config(tmp_path, size=30)) == training_problems(config(tmp_path, size=90))[:30]
    # The same names lie in valid_unseen: those are held out.
    assert not {p["id"] for p in found} & {p["id"] for p in evaluation_problems(config(tmp_path))}


def test_a_run_has_the_same_problems_wherever_its_games_lie(tmp_path):
    for place in (tmp_path / "here", tmp_path / "elsewhere"):
        for split in ("train", "valid_unseen"):
            write(place / split, f"pick_and_place_simple-Laptop-None-Sofa-229/trial_{split}")
    here, elsewhere = config(tmp_path / "here"), config(tmp_path / "elsewhere")
    (problem,) = training_problems(here)
    assert [problem] == training_problems(elsewhere) and problem["game"] == f"{problem['id']}/game.tw-pddl"
    for settings in (here, elsewhere):
        (held_out,) = evaluation_problems(settings)
        for played in (game_folders.located(problem, settings.data.path), held_out):
            assert Path(played["game"]).is_file() and played == game_folders.located(played, settings.data.path)
    own = {"id": "7", "question": "Who plays?", "game": "chess"}
    assert game_folders.located(own, here.data.path) is own, "a user's own problem stays as it is"


def test_what_alfworlds_loader_leaves_out_is_no_problem(tmp_path):
    write(tmp_path, "pick_and_place_with_movable_recep-Pen-Mug-Desk-301/trial_T1_0")
    write(tmp_path, "pick_and_place_simple-AppleSliced-None-Sofa-229/trial_T1_1")
    write(tmp_path, "pick_and_place_simple-Laptop-None-Sofa-229/trial_T1_2", solvable=False)
    write(tmp_path, "pick_and_place_simple-Laptop-None-Sofa-229/trial_T1_3")
    (tmp_path / "pick_and_place_simple-Laptop-None-Sofa-229/trial_T1_3/traj_data.json").unlink()
    rows = dict(game_folders.rows(tmp_path))
    assert [str(row) for _, row in sorted(rows.items())] == [
        "it is not known to be solvable; `alfworld-generate` finds out",
        f"no game: FileNotFoundError: [Errno 2] No such file or directory: '{tmp_path}/"
        "pick_and_place_simple-Laptop-None-Sofa-229/trial_T1_3/traj_data.json'",
    ]
    with pytest.raises(ConfigError, match=r"no row can be used; .*it is not known to be solvable"):
        file_problems(tmp_path)


def test_alfworld_plays_no_tasks_of_reasoning_gym(tmp_path):
    with pytest.raises(ValueError, match=r'"alfworld" plays games of a folder, and data.tasks has none; set data.path'):
        config(tmp_path, path=None, tasks={"chain_sum": {}})
