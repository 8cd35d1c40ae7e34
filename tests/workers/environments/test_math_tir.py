import asyncio
import time

import pytest

from pipeline import config
from workers.environments import Turn
from workers.environments.math_tir import INSTRUCTIONS
from workers.environments.python_tool import observation, open_python
from workers.environments.tool_calls import write_call

SETTINGS = config.Environment(name="math_tir", tool_timeout_s=2, step_timeout_s=30)
PROBLEM = {"id": "1", "question": "What is 1/4 + 1/4?", "answer": r"\frac{1}{2}"}
SOLUTION = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nThat is 48+24 = <<48+24=72>>72 clips.\n#### 72"


def python(code):
    return write_call("python", code=code)


def texts(turn):
    assert {message["role"] for message in turn.messages} == {"tool"}
    return [message["content"] for message in turn.messages]


def test_variables_live_from_call_to_call_and_the_answer_is_judged(play):
    first, second, third, end = play(SETTINGS, PROBLEM, python("n = 2**100"), python("print(n)"), r"so \boxed{0.5}")
    assert first.messages == [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": PROBLEM["question"]},
    ]
    assert texts(second) == [""] and texts(third) == [str(2**100)]
    assert second.metrics == third.metrics == {"tool_calls": 1}
    assert end == Turn([], reward=1.0, done=True)


def test_two_episodes_share_no_variable(play):
    assert "n = 3" not in str(play(SETTINGS, PROBLEM, python("n = 3")))
    turn = play(SETTINGS, PROBLEM, python("print(n)"))[-1]
    assert texts(turn) == ["NameError: name 'n' is not defined\n[exception]"]
    assert turn.metrics == {"tool_calls": 1, "failed_calls": 1}


def test_both_native_forms_of_a_call_run(play):
    xml = "<tool_call>\n<function=python>\n<parameter=code>\nprint(6 * 7)\n</parameter>\n</function>\n</tool_call>"
    assert texts(play(SETTINGS, PROBLEM, xml)[-1]) == ["42"]


def test_several_calls_of_one_reply_run_in_their_order_each_with_its_answer(play):
    reply = "".join([python("a = 1"), python("print(a)"), "<tool_call>x</tool_call>", *[python("print(a + 1)")] * 3])
    turn = play(SETTINGS, PROBLEM, reply)[-1]
    said = texts(turn)
    assert said[:2] == ["", "1"] and said[2].startswith("[not run: expected {") and said[3] == "2"
    assert said[4:] == ["[not run: at most 4 calls at once]"] * 2
    assert turn.metrics == {"tool_calls": 3, "malformed_calls": 1}


def test_a_call_comes_before_an_answer_in_the_same_reply(play):
    turn = play(SETTINGS, PROBLEM, python("print(1)") + r" and so \boxed{\frac12}")[-1]
    assert not turn.done and texts(turn) == ["1"]


@pytest.mark.parametrize(
    ("reply", "reward", "metrics"),
    [
        (r"\boxed{\frac{2}{4}}", 1.0, {}),
        (r"\boxed{0.6}", 0.0, {}),
        (r"\boxed{0.5} or \boxed{0.6}", 0.0, {}),
        (r"<think>\boxed{0.6} no</think> \boxed{.5}", 1.0, {}),
        ("0.5", 0.0, {"no_answer": 1}),
        ("", 0.0, {"no_answer": 1}),
        (r"\boxed{10^{10^{10}}}", 0.0, {"judge_timeout": 1}),
    ],
)
def test_a_reply_without_a_call_ends_the_episode(play, reply, reward, metrics):
    assert play(SETTINGS, PROBLEM, reply)[-1] == Turn([], reward=reward, done=True, metrics=metrics)


def test_a_call_that_never_ends_is_told_of_and_so_is_what_was_lost(play):
    turns = play(SETTINGS, PROBLEM, python("n = 1"), python("while True: pass"), python("print(n)"))
    assert texts(turns[2]) == ["[timeout; all variables are lost]"]
    assert texts(turns[3])[0].startswith("NameError")


def test_as_many_slow_calls_as_a_reply_can_hold_end_with_the_step_and_are_answered(play):
    settings = config.Environment(name="math_tir", tool_timeout_s=1.5, step_timeout_s=3)
    play(settings, PROBLEM, python("1"))  # the fork server is up
    begun = time.monotonic()
    turn = play(settings, PROBLEM, python("while True: pass") * 4)[-1]
    assert time.monotonic() - begun < 3
    assert texts(turn) == ["[timeout; all variables are lost]", "[timeout]", "[timeout]", "[timeout]"]
    assert turn.metrics == {"tool_calls": 4, "failed_calls": 4} and not turn.done


def test_a_call_that_gets_no_place_in_time_is_told_so():
    async def main():
        settings = config.Environment(tool_concurrency=1, tool_timeout_s=20, step_timeout_s=30)
        async with open_python(settings) as tool:
            busy, waiting = tool(), tool()
            await waiting.run("x = 1", waiting.until())
            running = asyncio.create_task(busy.run("while True: pass", busy.until()))
            await asyncio.sleep(0.1)
            given = await waiting.run("x", asyncio.get_running_loop().time() + 0.3)
            assert observation(given) == "[timeout]"
            running.cancel()
            assert observation(await waiting.run("x", waiting.until())) == "1", "nothing was lost"
            await waiting.close()

    asyncio.run(main())


def test_a_solution_with_calculations_is_demonstrated_with_the_tool(play):
    problem = {"question": "How many?", "answer": "72", "solution": SOLUTION}
    _, observed, end = play(SETTINGS, problem, None, None)
    assert texts(observed) == ["24.0\n72"] and observed.metrics == {"tool_calls": 1}
    assert (end.reward, end.done) == (1.0, True)


def test_nothing_is_demonstrated_that_the_tool_does_not_show(play):
    without = {"question": "How many?", "answer": "72", "solution": "It is 72.\n#### 72"}
    with pytest.raises(AttributeError):  # None, in place of a reply
        play(SETTINGS, without, None)
    other = {"question": "How many?", "answer": "73", "solution": SOLUTION}
    with pytest.raises(AttributeError):
        play(SETTINGS, other, None, None)


def test_a_system_message_of_the_prompt_follows_the_instructions(play):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    (turn,) = play(SETTINGS, PROBLEM | {"messages": messages})
    assert turn.messages == [{"role": "system", "content": f"{INSTRUCTIONS}\n\nBe brief."}, messages[1]]
    (bare,) = play(SETTINGS.model_copy(update={"options": {"instructions": ""}}), PROBLEM | {"messages": messages})
    assert bare.messages == messages
