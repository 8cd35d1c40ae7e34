from pathlib import Path

import pytest

from pipeline import config
from pipeline.errors import ConfigError
from workers.environments import BUILT_IN, Environment, Turn, load
from workers.environments.math_tool import MathTool

HERE = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chess", r"expected 'math_tool', 'math_tir', .* or \"module:Class\""),
        ("no/such/file.py:Thing", "no file no/such/file.py"),
        ("no.such.module:Thing", "importing no.such.module raised ModuleNotFoundError"),
        ("{here}/guess_the_number.py:Chess", "has no Chess; environments in it: Environment, GuessTheNumber"),
        ("{here}/guess_the_number.py:Turn", "Turn is not a subclass of workers.environments.Environment"),
        ("{broken}:Thing", "raised ZeroDivisionError"),
    ],
)
def test_an_environment_that_cannot_be_loaded_is_named_with_the_reason(tmp_path, name, message):
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=message):
        load(name.format(here=HERE, broken=broken))


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_environment_is_there(name):
    assert issubclass(load(name), Environment)


def test_modules_and_files_are_loaded_by_name():
    assert load("math_tool") is load("workers.environments.math_tool:MathTool") is MathTool
    assert issubclass(load(f"{HERE}/guess_the_number.py:GuessTheNumber"), Environment)


def test_a_constructor_that_raises_is_refused_before_the_first_episode(play):
    settings = config.Environment(name=f"{HERE}/guess_the_number.py:GuessTheNumber", options={"colour": "red"})
    with pytest.raises(ConfigError, match=r"options = {'colour': 'red'} raised TypeError: .*colour"):
        play(settings, {})


def test_the_documented_example_plays(play):
    settings = config.Environment(name=f"{HERE}/guess_the_number.py:GuessTheNumber", options={"hints": False})
    turns = play(settings, {"question": "1 to 9?", "number": 7}, "5", "7")
    assert turns[1] == Turn([{"role": "user", "content": "no"}])
    assert turns[2] == Turn([], reward=1.0, done=True)
