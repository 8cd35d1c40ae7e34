import pytest

from pipeline import config, data
from pipeline.errors import ConfigError
from workers.environments import Turn
from workers.environments.reasoning_gym import AGAIN, INSTRUCTIONS


def settings(**options):
    return config.Environment(name="reasoning_gym", options=options)


def problems(task, size=1):
    sections = {"run": {"name": "t"}, "model": {"tiny": {}}, "data": {"size": size, "tasks": {task: {}}}}
    return data.training_problems(config.Config.model_validate(sections))


def test_the_verifiers_own_score_is_the_reward(play):
    (problem,) = problems("gcd")
    first, end = play(settings(), problem, f"so <answer>{problem['answer']}</answer>")
    assert first.messages[0] == {"role": "system", "content": INSTRUCTIONS}
    assert end == Turn([], reward=1.0, done=True)
    partial = play(settings(), problem, f"<answer>{problem['answer']} or 9999</answer>")[-1]
    assert 0 < partial.reward < 1


@pytest.mark.parametrize(
    ("reply", "metrics"),
    [("12", {"no_answer": 1}), ("<answer>{</answer>", {"judge_exception": 1})],
)
def test_junk_scores_nothing_and_is_counted(play, reply, metrics):
    assert play(settings(), problems("prime_factorization")[0], reply)[-1] == Turn(
        [], reward=0.0, done=True, metrics=metrics
    )


def test_as_many_tries_as_asked_for_and_the_last_one_counts(play):
    (problem,) = problems("gcd")
    right = f"<answer>{problem['answer']}</answer>"
    _, again, end = play(settings(tries=3, instructions=""), problem, "<answer>x</answer>", right)
    assert again.messages == [{"role": "user", "content": AGAIN}] and not again.done
    assert end.done and end.reward == 1.0
    last = play(settings(tries=2), problem, "?", "?")[-1]
    assert last == Turn([], reward=0.0, done=True, metrics={"no_answer": 1})
    with pytest.raises(ConfigError, match="expected tries to be at least 1, found 0"):
        play(settings(tries=0), problem)


def test_the_demonstration_is_the_answer(play):
    assert play(settings(), problems("gcd")[0], None)[-1].reward == 1.0
