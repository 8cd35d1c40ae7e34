import asyncio

import pytest

from pipeline import config
from workers.environments import Turn, open_environment
from workers.environments.math_tool import NOT_RUN

SUM = {
    "id": "s",
    "task": "chain_sum",
    "question": "State …: 4 - 1 =",
    "answer": "3",
    "metadata": {"expression": "4 - 1"},
}


def call(code):
    return '<tool_call>\n{"name": "python", "arguments": {"code": "' + code + '"}}\n</tool_call>'


def test_the_demonstration_calls_the_tool_and_answers_with_what_it_printed(play):
    question, observation, end = play(config.Environment(), SUM, None, None)
    assert question.messages == [{"role": "user", "content": "4 - 1 = ?"}]
    assert observation == Turn([{"role": "tool", "content": "3"}], metrics={"tool_calls": 1})
    assert end == Turn([], reward=1.0, done=True)


def test_what_code_raises_is_text_for_the_model(play):
    settings = config.Environment(tool_timeout_s=0.5)
    turns = play(settings, SUM, call("1 / 0"), call("while True: pass"), call("print()"))
    texts = [turn.messages[0]["content"] for turn in turns[1:]]
    assert "ZeroDivisionError" in texts[0]
    assert texts[1] == "[timeout; all variables are lost]"
    assert texts[2] == ""


def test_variables_of_one_call_are_there_in_the_next_of_the_same_episode_only(play):
    turns = play(config.Environment(), SUM, call("x = 4 - 1"), call("x"), call("print(x)"))
    assert [turn.messages[0]["content"] for turn in turns[1:]] == ["", "3", "3"]
    (turn,) = play(config.Environment(), SUM, call("x"))[1:]
    assert turn.messages[0]["content"].startswith("NameError")


def test_of_several_calls_the_first_one_runs_and_each_is_answered(play):
    turns = play(config.Environment(), SUM, call("x = 3") + call("x = 4") + call("print(x"), call("print(x)"))
    assert [message["content"] for message in turns[1].messages] == ["", NOT_RUN, NOT_RUN]
    assert turns[1].metrics == {"tool_calls": 1}
    assert turns[2].messages == [{"role": "tool", "content": "3"}]


@pytest.mark.parametrize(
    ("reply", "reward", "metric"),
    [
        ("<answer> 3 </answer>", 1.0, None),
        ("<answer>4</answer>", 0.0, None),
        ("<answer>1 2 3 4</answer>", 0.0, None),  # contains the right one
        ("3", 0.0, "no_answer"),
        ("<think><answer>3</answer>", 0.0, "no_answer"),
        ("<think><answer>3</answer> no</think> 4", 0.0, "no_answer"),
        ('<tool_call>{"name": "python"}</tool_call>', 0.0, "malformed_calls"),
        ("<tool_call>print(3)</tool_call>", 0.0, "malformed_calls"),
        ("<tool_call>\n" + "[" * 5000 + "\n</tool_call>", 0.0, "malformed_calls"),
    ],
)
def test_a_reply_ends_the_episode_with_full_reward_or_none(play, reply, reward, metric):
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
def test_the_last_number_of_a_reply_is_its_answer_where_that_is_asked_for(play, reply, reward):
    settings = config.Environment(options={"last_number": True})
    turn = play(settings, {"question": "How many?", "answer": "1072"}, reply)[-1]
    assert (turn.reward, turn.done) == (reward, True)


def test_a_verifier_judges_what_it_is_needed_for_and_only_its_full_score_counts(play):
    problem = {
        "task": "countdown",
        "question": "",
        "answer": "94*4 - 61 - 6",
        "metadata": {"target": 309, "numbers": [94, 4, 61, 6]},
    }
    for answer, reward in (("4*94 - 6 - 61", 1.0), ("94 + 4", 0.0), ("import os; ((", 0.0)):
        assert play(config.Environment(), problem, f"<answer>{answer}</answer>")[-1].reward == reward
    unknown = play(config.Environment(), problem | {"task": "none"}, "<answer>1</answer>")[-1]
    assert (unknown.reward, unknown.metrics) == (0.0, {"judge_exception": 1})


def test_problems_of_no_task_are_equal_by_value_or_by_text(play):
    for answer, expected, reward in (("$1000.0", "1,000", 1.0), ("London", "Paris", 0.0), ("Paris", "Paris", 1.0)):
        turn = play(config.Environment(), {"question": "", "answer": expected}, f"<answer>{answer}</answer>")[-1]
        assert turn.reward == reward


def test_instructions_become_a_system_message_and_show_the_tool():
    async def main():
        async with open_environment(config.Environment(options={"instructions": "Think."})) as make:
            environment = make()
            return environment.tools, (await environment.reset(SUM, 0)).messages

    tools, messages = asyncio.run(main())
    assert tools[0]["function"]["name"] == "python"
    assert messages[0] == {"role": "system", "content": "Think."}
