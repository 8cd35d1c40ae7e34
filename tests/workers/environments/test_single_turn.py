import pytest

from pipeline import config
from pipeline.errors import ConfigError
from workers.environments import Turn


def settings(**options):
    return config.Environment(name="single_turn", options=options)


@pytest.mark.parametrize(
    ("verify", "answer", "reply", "reward"),
    [
        ("exact", "Paris", " paris\n", 1.0),
        ("exact", "Paris", "<think>London</think>It is <answer>Paris</answer>", 1.0),
        ("exact", "Paris", "It is Paris", 0.0),
        ("exact", "72", "72.0", 0.0),
        ("number", "1072", "#### 1,072", 1.0),
        ("number", "1,072", r"7 and \boxed{1072.0}", 1.0),
        ("number", 72, "71", 0.0),
        ("number", "72", r"\boxed{many}", 0.0),
        ("math", "1/2", r"\boxed{0.5}", 1.0),
        ("math", "1/2", "<answer>0.6</answer>", 0.0),
    ],
)
def test_an_answer_is_verified_in_the_way_asked_for(play, verify, answer, reply, reward):
    turn = play(settings(verify=verify), {"question": "?", "answer": answer}, reply)[-1]
    assert turn == Turn([], reward=reward, done=True)


@pytest.mark.parametrize(("verify", "reply"), [("number", "none"), ("math", "1/2")])
def test_a_reply_without_an_answer_earns_nothing(play, verify, reply):
    turn = play(settings(verify=verify), {"question": "?", "answer": "1/2"}, reply)[-1]
    assert turn == Turn([], reward=0.0, done=True, metrics={"no_answer": 1})


def test_instructions_are_the_systems(play):
    (turn,) = play(settings(instructions="Think."), {"question": "1+1?", "answer": "2"})
    assert [message["role"] for message in turn.messages] == ["system", "user"]


def test_a_way_that_there_is_not_is_refused_before_the_first_episode(play):
    with pytest.raises(ConfigError, match="expected verify to be one of exact, number, math, found 'vibes'"):
        play(settings(verify="vibes"), {"question": "?", "answer": "1"})
