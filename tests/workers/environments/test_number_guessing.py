import asyncio
from collections import Counter

import pytest

from pipeline import config
from pipeline.number_guessing import games, secret
from workers.environments.conformance import assert_conforms
from workers.environments.number_guessing import NumberGuessing


def settings(turns=16, **options):
    return config.Environment(name="number_guessing", max_turns=turns, options=options)


def game(number):
    return {"question": "Guess my number from 0 to 99: game 12345", "answer": str(number)}


def said(turns):
    return [turn.messages[0]["content"] for turn in turns if turn.messages]


def test_a_guess_hears_where_the_number_is_and_finding_it_is_the_reward(play):
    turns = play(settings(), game(57), "50", " 60\n", "57")
    assert said(turns) == ["Guess my number from 0 to 99: game 12345", "higher", "lower"]
    assert (turns[-1].reward, turns[-1].done) == (1.0, True)
    assert not any(turn.done for turn in turns[:-1])


@pytest.mark.parametrize("reply", ["", "100", "-1", "5 0", "fifty", "57!", "057", "5.0", "٥٧"])
def test_what_is_no_number_from_0_to_99_is_invalid_and_takes_a_turn(play, reply):
    first, second = play(settings(2), game(57), reply, reply)[1:]
    assert first.messages == [{"role": "user", "content": "invalid"}] and first.metrics == {"invalid": 1}
    assert (second.reward, second.done, second.metrics) == (0.0, True, {"invalid": 1})


def test_a_failure_takes_all_turns(play):
    turns = play(settings(3), game(57), "1", "2", "3")
    assert [turn.done for turn in turns] == [False, False, False, True] and turns[-1].reward == 0.0


@pytest.mark.parametrize("number", [0, 1, 49, 50, 99])
def test_a_demonstration_halves_what_is_left_and_finds_every_number_in_seven_turns(number):
    async def turns():
        environment = NumberGuessing(7)
        turn = await environment.reset(game(number), 0)
        first = environment.demonstrate()
        while not turn.done:
            turn = await environment.step(environment.demonstrate())
        return first, turn.reward

    assert asyncio.run(turns()) == ("49", 1.0)


def test_a_lost_demonstration_does_not_listen():
    async def listened(lost):
        environment = NumberGuessing(100, lost)
        await environment.reset(game(0), 5)
        await environment.step("1")  # "lower": it is 0
        return environment.demonstrate() == "0"

    assert asyncio.run(listened(0.0)) and not asyncio.run(listened(1.0))


def test_a_game_has_its_number_for_ever_and_its_question_does_not_tell_it():
    some = list(games(300, seed=5))
    assert some == list(games(300, seed=5))
    assert some[1]["question"] == next(iter(games(1, seed=6)))["question"], "drawn as reasoning-gym draws"
    for each in some:
        assert each["answer"] == str(secret(each["question"].rpartition(" ")[2]))
    counts = Counter(int(each["answer"]) for each in games(10_000, seed=0))
    assert counts.keys() == set(range(100))
    assert min(counts.values()) > 60 and max(counts.values()) < 150, "every number about equally often"


def test_it_conforms():
    assert_conforms("number_guessing", list(games(5, seed=0)))
