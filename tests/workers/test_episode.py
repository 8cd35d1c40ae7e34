import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.trajectory import Trajectory
from tests.workers.scripts import Scripted, reservation
from workers.environments import Environment, Turn
from workers.episode import EpisodeFailed, play
from workers.time_limit import TimeLimit

NUMBER = json.dumps({"question": "1 to 9?", "number": 7}).encode()


@pytest.fixture
def game():
    from workers.environments import load

    return load(f"{Path(__file__).parent}/guess_the_number.py:GuessTheNumber")


def run(environment, engine, chat, settings, payload=NUMBER, version=0):
    return asyncio.run(play(reservation(payload, version), environment, engine, chat, settings))


def test_masks_segments_and_logprobs_cover_exactly_what_was_generated(settings, chat, game):
    engine = Scripted(chat, "5", "7", version=4)
    t = run(game(), engine, chat, settings(), version=3)
    first, second = chat.encode("5"), chat.encode("7")
    prompt = chat.prompt([{"role": "user", "content": "1 to 9?"}])
    hint = chat.extend([{"role": "user", "content": "higher"}])
    end = [chat.end_token]
    assert t.tokens.tolist() == prompt + first + end + hint + second + end
    assert t.loss_mask.tolist() == [0] * len(prompt) + [1, 1] + [0] * len(hint) + [1, 1]
    assert t.rollout_logprobs[t.loss_mask == 1].tolist() == [-1, -2, -1, -2]
    assert [tuple(s) for s in t.segments] == [
        (len(prompt), 2, "scripted", 4),
        (len(prompt) + 2 + len(hint), 2, "scripted", 4),
    ]
    assert (t.reward, t.outcome, t.finish_reason, t.metrics) == (1.0, 1.0, "stop", {"tool_calls": 0.0, "turns": 2.0})
    assert (t.entry, t.prompt_id, t.version, t.event, t.value) == ("entry-1", "prompt-1", 3, 3, 0.25)
    assert Trajectory.decode(t.encode()).tokens.tolist() == t.tokens.tolist()


def test_the_prompt_of_each_turn_begins_with_exactly_the_tokens_of_the_turn_before(settings, chat, game):
    engine = Scripted(chat, "5", "8…", "6", "7")
    t = run(game(), engine, chat, settings(environment={"max_turns": 4}))
    for before, after in zip(engine.prompts, [*engine.prompts[1:], t.tokens.tolist()], strict=True):
        assert after[: len(before)] == before


def test_a_cut_reply_gets_its_end_token_without_becoming_an_action(settings, chat, game):
    engine = Scripted(chat, "5…", "7")
    t = run(game(), engine, chat, settings())
    cut = len(engine.prompts[0]) + len(chat.encode("5"))
    assert t.tokens[cut] == chat.end_token and t.loss_mask[cut - 1 : cut + 1].tolist() == [1, 0]
    assert t.finish_reason == "stop"
    assert run(game(), Scripted(chat, "7…"), chat, settings()).finish_reason == "length"


def question(chat):
    return chat.prompt([{"role": "user", "content": "1 to 9?"}])


def test_used_up_turns_end_an_episode_with_the_last_reward_or_none(settings, chat, game):
    t = run(game(), Scripted(chat, "5", "6"), chat, settings(environment={"max_turns": 2}))
    assert (t.finish_reason, t.reward, t.metrics["turns"]) == ("turns", 0.0, 2)
    assert t.loss_mask[-2:].tolist() == [1, 1]


def test_an_observation_without_room_in_the_context_ends_an_episode_before_it(settings, chat, game):
    room = len(question(chat)) + 4
    t = run(game(), Scripted(chat, "5", "6"), chat, settings(rollout={"context_length": room}))
    assert (t.finish_reason, t.reward, len(t.tokens)) == ("tool_context", 0.0, room - 2)
    assert t.loss_mask[-3:].tolist() == [0, 1, 1]


def test_a_reply_that_fills_the_context_ends_an_episode_even_if_it_could_go_on(settings, chat, game):
    for reply in ("5", "7"):  # a wrong guess, which the environment would answer, and the right one
        length = len(chat.encode(reply))
        room = len(question(chat)) + length
        t = run(game(), Scripted(chat, f"{reply}…"), chat, settings(rollout={"context_length": room, "max_tokens": 8}))
        assert (t.finish_reason, t.reward, len(t.tokens)) == ("context", float(reply == "7"), room)
        assert t.loss_mask.tolist() == [0] * (room - length) + [1] * length


def test_an_empty_reply_is_scored_and_ends_an_episode(settings, chat, game):
    class Patient(Environment):
        async def reset(self, prompt, seed):
            return Turn([{"role": "user", "content": "1 to 9?"}])

        async def step(self, reply):
            assert reply == ""
            return Turn([{"role": "user", "content": "well?"}], reward=0.25)

    t = run(Patient(), Scripted(chat, "", "7"), chat, settings())
    assert (t.finish_reason, t.reward, t.tokens.tolist()) == ("empty", 0.25, [*question(chat), chat.end_token])
    assert t.loss_mask.tolist()[-2:] == [0, 1]
    t = run(game(), Scripted(chat, ""), chat, settings())
    assert (t.finish_reason, t.reward, t.outcome) == ("empty", -1.0, 0.0)


def test_a_stop_string_ends_a_reply_whose_end_token_is_appended_as_no_action(settings, chat, game):
    t = run(game(), Scripted(chat, "5|", "7"), chat, settings())
    cut = len(question(chat)) + len(chat.encode("5"))
    assert t.tokens[cut] == chat.end_token and t.loss_mask[cut - 1 : cut + 1].tolist() == [1, 0]
    assert (t.finish_reason, t.reward) == ("stop", 1.0)
    assert run(game(), Scripted(chat, "7|"), chat, settings()).finish_reason == "stop_string"


def test_a_reward_outside_of_the_outcomes_range_comes_with_its_own_outcome(settings, chat, game):
    t = run(game(), Scripted(chat, "seven"), chat, settings())
    assert (t.reward, t.outcome, t.metrics["not_a_number"]) == (-1.0, 0.0, 1.0)


def test_a_prompt_that_leaves_no_room_is_a_failure(settings, chat, game):
    with pytest.raises(EpisodeFailed, match="leaves no room") as failure:
        run(game(), Scripted(chat), chat, settings(rollout={"context_length": 5, "max_tokens": 2}))
    assert failure.value.code == "PROMPT_TOO_LONG"


class Scene(Environment):
    """Behaves as its prompt says."""

    closed = 0

    async def reset(self, prompt, seed):
        if prompt["how"] == "slow reset":
            await asyncio.sleep(60)
        if prompt["how"] == "raises":
            raise KeyError("board")
        return Turn([{"role": "user", "content": "go"}])

    async def step(self, reply):
        how = "step"
        await asyncio.sleep(60 if reply == "slow" else 0)
        turns = {"none": None, "no reward": Turn([], done=True), "nan": Turn([], reward=float("nan"), done=True)}
        turns["range"] = Turn([], reward=2.0, done=True)
        turns["huge"] = Turn([], reward=-1e7, done=True, metrics={"outcome": 0})
        return turns.get(reply, how)

    async def close(self):
        Scene.closed += 1
        raise RuntimeError("the door is stuck")


@pytest.mark.parametrize(
    ("how", "reply", "code", "message"),
    [
        ("raises", "", "ENVIRONMENT", r"Scene.reset raised KeyError: 'board'\n.*in reset"),
        ("slow reset", "", "SETUP_TIMEOUT", "reset took over environment.setup_timeout_s = 0.05"),
        ("", "slow", "STEP_TIMEOUT", "step took over environment.step_timeout_s = 0.1"),
        ("", "none", "ENVIRONMENT", "expected a Turn, found None"),
        ("", "no reward", "ENVIRONMENT", "done without a reward"),
        ("", "nan", "ENVIRONMENT", "expected a finite reward, found nan"),
        ("", "range", "ENVIRONMENT", r"expected an outcome in \[0, 1\], found 2.0"),
        ("", "huge", "ENVIRONMENT", r"expected a reward of at most 1e\+06 either way, found -10000000.0; scale it"),
    ],
)
def test_an_environment_that_fails_is_a_failure_with_its_reason_and_is_closed(
    settings, chat, how, reply, code, message
):
    config = settings(environment={"setup_timeout_s": 0.05, "step_timeout_s": 0.1, "tool_timeout_s": 0.05})
    closed = Scene.closed
    with pytest.raises(EpisodeFailed, match="(?s)" + message) as failure:
        run(Scene(), Scripted(chat, reply), chat, config, json.dumps({"how": how}).encode())
    assert failure.value.code == code and Scene.closed == closed + 1


def test_an_episode_has_a_time_limit_of_its_own(settings, chat):
    config = settings(environment={"episode_timeout_s": 0.3})
    with pytest.raises(EpisodeFailed, match=r"not done within environment\.episode_timeout_s = 0\.3") as failure:
        run(Scene(), Scripted(chat, "slow"), chat, config, json.dumps({"how": ""}).encode())
    assert failure.value.code == "EPISODE_TIMEOUT"


def test_time_that_stands_still_is_not_counted():
    async def main():
        async with TimeLimit(0.3) as time_limit:
            with time_limit.standing_still():
                await asyncio.sleep(0.5)
            await asyncio.sleep(0.05)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(60)
            raise asyncio.CancelledError

    with pytest.raises(TimeoutError):
        asyncio.run(main())


def test_arrays_are_of_the_wire_types(settings, chat, game):
    t = run(game(), Scripted(chat, "7"), chat, settings())
    assert (t.tokens.dtype, t.loss_mask.dtype, t.rollout_logprobs.dtype) == (np.int32, np.uint8, np.float32)
