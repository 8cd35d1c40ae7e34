import asyncio
from pathlib import Path

import pytest

from pipeline import config
from pipeline.errors import ConfigError
from workers.environments import Environment, Turn, load, open_environment
from workers.environments.math_tool import MathTool, read_call, verify

HERE = Path(__file__).parent
SUM = {
    "id": "s",
    "task": "chain_sum",
    "question": "State …: 4 - 1 =",
    "answer": "3",
    "metadata": {"expression": "4 - 1"},
}


def call(code):
    return '<tool_call>\n{"name": "python", "arguments": {"code": "' + code + '"}}\n</tool_call>'


def play(environment_settings, prompt, *replies):
    """The turns of one episode of the real environment, sandbox included."""

    async def main():
        async with open_environment(environment_settings) as make:
            environment = make()
            turns = [await environment.reset(prompt, 0)]
            for reply in replies:
                turns.append(await environment.step(reply or environment.demonstrate()))
            await environment.close()
            return turns

    return asyncio.run(main())


# -- loading


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chess", r'expected \'math_tool\', "path/to/file.py:Class" or "module:Class"'),
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


def test_modules_and_files_are_loaded_by_name():
    assert load("math_tool") is load("workers.environments.math_tool:MathTool") is MathTool
    assert issubclass(load(f"{HERE}/guess_the_number.py:GuessTheNumber"), Environment)


def test_a_constructor_that_raises_is_refused_before_the_first_episode():
    settings = config.Environment(name=f"{HERE}/guess_the_number.py:GuessTheNumber", options={"colour": "red"})
    with pytest.raises(ConfigError, match=r"options = {'colour': 'red'} raised TypeError: .*colour"):
        play(settings, {})


def test_the_documented_example_plays():
    settings = config.Environment(name=f"{HERE}/guess_the_number.py:GuessTheNumber", options={"hints": False})
    turns = play(settings, {"question": "1 to 9?", "number": 7}, "5", "7")
    assert turns[1] == Turn([{"role": "user", "content": "no"}])
    assert turns[2] == Turn([], reward=1.0, done=True)


# -- math with a tool


def test_the_demonstration_calls_the_tool_and_answers_with_what_it_printed():
    question, observation, end = play(config.Environment(), SUM, None, None)
    assert question.messages == [{"role": "user", "content": "4 - 1 = ?"}]
    assert observation == Turn([{"role": "tool", "content": "3"}], metrics={"tool_calls": 1})
    assert end == Turn([], reward=1.0, done=True)


def test_what_code_raises_is_text_for_the_model():
    settings = config.Environment(tool_timeout_s=0.5)
    turns = play(settings, SUM, call("1 / 0"), call("while True: pass"), call("print()"))
    texts = [turn.messages[0]["content"] for turn in turns[1:]]
    assert "ZeroDivisionError" in texts[0]
    assert texts[1] == "[timeout; all variables are lost]"
    assert texts[2] == ""


def test_variables_of_one_call_are_there_in_the_next_of_the_same_episode_only():
    turns = play(config.Environment(), SUM, call("x = 4 - 1"), call("x"), call("print(x)"))
    assert [turn.messages[0]["content"] for turn in turns[1:]] == ["", "3", "3"]
    (turn,) = play(config.Environment(), SUM, call("x"))[1:]
    assert turn.messages[0]["content"].startswith("NameError")


@pytest.mark.parametrize(
    ("reply", "reward", "metric"),
    [
        ("<answer> 3 </answer>", 1.0, None),
        ("<answer>4</answer>", 0.0, None),
        ("<answer>1 2 3 4</answer>", 0.0, None),  # contains the right one
        ("3", 0.0, "no_answer"),
        ('<tool_call>{"name": "python"}</tool_call>', 0.0, "malformed_call"),
        ("<tool_call>print(3)</tool_call>", 0.0, "malformed_call"),
        ("<tool_call>\n" + "[" * 5000 + "\n</tool_call>", 0.0, "malformed_call"),
    ],
)
def test_a_reply_ends_the_episode_with_full_reward_or_none(reply, reward, metric):
    turn = play(config.Environment(), SUM, reply)[-1]
    assert turn == Turn([], reward=reward, done=True, metrics={metric: 1} if metric else {})


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("48/2 = 24, 48+24 = 1,072\n#### 1,072", 1.0),
        ("The answer is $1072.00.", 1.0),
        ("It is 1072, not 1071", 0.0),
        ("#### -1072", 0.0),
        ("2144-1072", 1.0),  # a difference, no negative number
        ("<answer>1072</answer>, or 7", 1.0),
        ("no number", 0.0),
    ],
)
def test_the_last_number_of_a_reply_is_its_answer_where_that_is_asked_for(reply, reward):
    settings = config.Environment(options={"last_number": True})
    turn = play(settings, {"question": "How many?", "answer": "1072"}, reply)[-1]
    assert (turn.reward, turn.done) == (reward, True)


def test_only_whole_calls_of_the_python_tool_are_read():
    assert read_call('{"name": "python", "arguments": {"code": "print(1)"}}') == "print(1)"
    for text in (
        "[1]",
        '"x"',
        '{"name": "shell", "arguments": {"code": "ls"}}',
        '{"name": "python", "arguments": "x"}',
    ):
        assert read_call(text) is None


def test_verifiers_that_raise_and_problems_without_a_task_are_scored_too():
    problem = {
        "task": "countdown",
        "question": "",
        "answer": "94*4 - 61 - 6",
        "metadata": {"target": 309, "numbers": []},
    }
    assert verify(problem, "import os; ((") == 0.0
    assert verify({"question": "", "answer": "1,000"}, "$1000.0") == 1.0
    assert verify({"question": "", "answer": "Paris"}, "London") == 0.0


def test_a_task_without_a_verifier_is_a_failure_and_no_wrong_answer():
    with pytest.raises(ValueError, match="no_such_task"):
        verify({"task": "no_such_task", "question": "", "answer": "1"}, "2")


def test_instructions_become_a_system_message_and_show_the_tool():
    async def main():
        async with open_environment(config.Environment(options={"instructions": "Think."})) as make:
            environment = make()
            return environment.tools, (await environment.reset(SUM, 0)).messages

    tools, messages = asyncio.run(main())
    assert tools[0]["function"]["name"] == "python"
    assert messages[0] == {"role": "system", "content": "Think."}
