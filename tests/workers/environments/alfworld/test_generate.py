import hashlib
import json
import random
import subprocess
import sys

import pytest

from pipeline.errors import ConfigError, HeadraceError
from workers.environments.alfworld import generate

SEEN = """
import json, sys
from workers.environments.alfworld import game, remembered
if sys.argv[2] == "remember":
    remembered.remember()
played = game.Game(sys.argv[1], 7)
seen = [played.begin()]
while len(seen) < 12 and not seen[-1].won:
    seen.append(played.step(seen[-1].advice))
print(json.dumps(seen))
"""


def test_every_task_type_is_solved_and_won_on_replay(folder, problems):
    assert sorted(problem["task"] for problem in problems) == sorted(generate.KINDS)
    from workers.environments.alfworld import proof

    for problem in problems:
        with open(problem["game"]) as file:
            game = json.load(file)
        assert game["solvable"] and proof.wins(game, game["walkthrough"])
        assert not proof.wins(game, [*game["walkthrough"][:-1], "look"]), "the last command is what wins"


def test_what_is_held_out_lies_in_scenes_that_are_not_trained_in(folder):
    from alfworld.gen import constants

    scenes = {
        split: {json.loads(path.read_text())["scene"]["scene_num"] for path in (folder / split).rglob("traj_data.json")}
        for split in generate.SPLITS
    }
    assert scenes["train"] <= set(constants.TRAIN_SCENE_NUMBERS)
    assert scenes["valid_unseen"] <= set(constants.TEST_SCENE_NUMBERS)


def test_the_canonical_games_are_the_same_everywhere(folder):
    from workers.environments.alfworld import problem, rooms

    digest = hashlib.sha256()
    for number in range(128):
        draw = random.Random(f"1 train {number}")
        digest.update(problem.write(rooms.drawn(generate.KINDS[number % 6], draw, False, 20), "game").encode())
    assert digest.hexdigest() == "cce632ab4f17d0a60333beff9d0e1dc8ac2edd552ea485c5c8bf75624d2fb822"


def test_a_task_is_not_done_before_it_begins_and_its_object_is_there(folder):
    from workers.environments.alfworld import rooms

    for number in range(300):
        room = rooms.drawn(generate.KINDS[number % 6], random.Random(number), number % 2 == 0, 4)
        at = [where.kind for kind, where in room.inside if kind == room.target]
        assert len(at) == (2 if room.task == rooms.TWO else 1) and room.goal not in at
        assert {where for _, where in room.inside} <= set(room.receptacles)
        assert all(rooms.holds(where.kind, kind) for kind, where in room.inside)


def test_games_that_are_there_are_not_overwritten(folder):
    with pytest.raises(ConfigError, match="train is there already: name another folder, or remove it"):
        generate.generate(folder, {"train": 1}, generate.KINDS, 3, 1)


def test_a_planner_that_fails_says_nothing_of_the_room(problems, monkeypatch, capfd):
    from textworld.envs.pddl.logic import PddlState

    from workers.environments.alfworld import proof

    def broken(*_):
        raise OSError("libdownward.so: no such file")

    def endless(*_):
        while True:
            pass

    with open(problems[0]["game"]) as file:
        game = json.load(file)
    monkeypatch.setattr(proof, "PLAN_S", 1)
    monkeypatch.setattr(PddlState, "replan", endless)
    assert proof.walkthrough(game) == []
    monkeypatch.setattr(PddlState, "replan", broken)
    with pytest.raises(
        HeadraceError, match="the planner to find commands or none, found that it failed with exit code 1"
    ):
        proof.walkthrough(game)
    assert "libdownward.so: no such file" in capfd.readouterr().err


def test_the_settings_that_are_printed_name_what_was_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate, "check_alfworld", lambda: None)
    monkeypatch.setattr(generate, "make", lambda wanted: ("a/b", {"game.tw-pddl": {"walkthrough": ["look"]}}))
    monkeypatch.setattr(sys, "argv", ["alfworld", str(tmp_path), "--train", "1", "--held-out", "0"])
    generate.main()
    assert capsys.readouterr().out.splitlines()[-1] == f'data.path = "{tmp_path}/train"'


def test_what_is_remembered_changes_no_transcript(problems):
    for problem in problems[:2]:
        plain, remembered = [
            subprocess.run(
                [sys.executable, "-c", SEEN, problem["game"], how], check=True, capture_output=True, timeout=250
            ).stdout
            for how in ("plain", "remember")
        ]
        assert plain == remembered and len(json.loads(plain)) > 4
