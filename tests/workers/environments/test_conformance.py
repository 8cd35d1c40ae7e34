"""Each rule finds the environment that breaks it, and no other rule does."""

import asyncio
from pathlib import Path

import pytest

from pipeline import config
from workers.environments.conformance import RULES, assert_conforms, check
from workers.environments.conformance.rules import (
    any_reply_is_answered,
    closes,
    ends,
    episodes_are_apart,
    in_time,
    judged,
    messages_are_well_formed,
    repeats,
    resets,
    tools_are_schemas,
)

HERE = Path(__file__).parents[1]
GUESS = f"{HERE}/guess_the_number.py:GuessTheNumber"
NUMBERS = [{"id": str(n), "question": "1 to 9?", "number": n} for n in (3, 7)]
PROBLEMS = [{"id": str(n), "question": f"{n}?", "answer": str(n)} for n in (3, 7)]

WHOLE = """
import asyncio, math, random, time
from workers.environments import Environment, Turn

class Mine(Environment):
    shared = []

    async def reset(self, prompt, seed):
        self.answer, self.turns = prompt["answer"], 0
        return Turn([{"role": "user", "content": prompt["question"]}])

    async def step(self, reply):
        self.turns += 1
        if self.turns == 2 or reply == self.answer:
            return Turn([], reward=1.0, done=True)
        return Turn([{"role": "user", "content": "again"}])
"""
DONE = "return Turn([], reward=1.0, done=True)"
AGAIN = 'return Turn([{"role": "user", "content": "again"}])'
RESET = 'return Turn([{"role": "user", "content": prompt["question"]}])'


def broken(tmp_path, old="", new="", **settings):
    """The rules that WHOLE breaks with `new` in place of `old`, and how."""
    assert old in WHOLE
    (tmp_path / "mine.py").write_text(WHOLE.replace(old, new) if old else WHOLE)
    found = asyncio.run(check(config.Environment(name=f"{tmp_path}/mine.py:Mine", **settings), PROBLEMS))
    return {rule: found[rule.__doc__] for rule in RULES if found.get(rule.__doc__)}


def test_a_whole_environment_breaks_no_rule(tmp_path):
    assert broken(tmp_path) == {}


@pytest.mark.parametrize(
    ("old", "new", "rule", "how"),
    [
        (RESET, 'raise OSError("no disk")', resets, "raised OSError: no disk"),
        (RESET, 'return Turn([{"role": "system", "content": "x"}])', resets, "whose last one is the user's"),
        (RESET, "return {}", resets, "gave {}, where a Turn is expected"),
        (RESET, 'return Turn([{"role": "user", "content": str(random.random())}])', repeats, "seed 0: "),
        (
            AGAIN,
            'return Turn([{"role": "critic", "content": "again"}])',
            messages_are_well_formed,
            "found {'role': 'cri",
        ),
        (
            AGAIN,
            'return Turn([{"role": "user", "content": 3}])',
            messages_are_well_formed,
            "found {'role': 'user', 'con",
        ),
        (AGAIN, "return Turn([])", messages_are_well_formed, "has nothing for the model to see"),
        ("shared = []", 'tools = [{"name": "x"}]', tools_are_schemas, "found {'name': 'x'}"),
        ("self.turns += 1", "self.turns += len(reply) or 1 / 0", any_reply_is_answered, "step('') raised ZeroDivision"),
        (DONE, "return Turn([], done=True)", judged, "done without a reward"),
        (DONE, "return Turn([], reward=math.nan, done=True)", judged, "expected a finite reward, found nan"),
        (DONE, "return Turn([], reward=2.0, done=True)", judged, "expected an outcome in [0, 1], found 2.0"),
        (DONE, "return Turn([], reward=1, done=True, metrics={'x': 'y'})", judged, "could not convert"),
        (DONE, AGAIN, ends, "was done within 4 turns"),
    ],
)
def test_a_broken_rule_is_found_and_no_other(tmp_path, old, new, rule, how):
    found = broken(tmp_path, old, new)
    assert list(found) == [rule]
    assert how in found[rule]


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_an_end_that_fails_somewhere_is_found(tmp_path, turns):
    code = f"if getattr(self, 'turns', None) == {turns}: raise RuntimeError('no')"
    found = broken(tmp_path, "shared = []", f"shared = []\n\n    async def close(self):\n        {code}")
    assert list(found) == [closes] and "it raised RuntimeError: no" in found[closes]


def test_state_that_episodes_share_is_found(tmp_path):
    told = AGAIN.replace('"again"', "self.answer")
    shared = WHOLE.replace("self.answer, self.turns = prompt", "Mine.answer, self.turns = prompt")
    for source, kept in ((WHOLE, True), (shared, False)):
        (tmp_path / "mine.py").write_text(source.replace(AGAIN, told))
        found = asyncio.run(check(config.Environment(name=f"{tmp_path}/mine.py:Mine"), PROBLEMS))
        assert ("beside another one" not in found[episodes_are_apart.__doc__]) == kept


def test_a_reward_that_is_different_each_time_is_no_shared_state(tmp_path):
    assert broken(tmp_path, DONE, "return Turn([], reward=random.random(), done=True)") == {}


def test_a_step_that_blocks_the_others_is_found_and_one_that_waits_is_not(tmp_path):
    turn = "self.turns += 1"
    blocking = broken(tmp_path, turn, f"{turn}; time.sleep(0.3)", max_turns=1)
    assert "nothing else could run" in blocking[in_time]
    waiting = broken(tmp_path, turn, f"{turn}; await asyncio.sleep(0.15)", max_turns=1)
    assert in_time not in waiting
    slow = broken(tmp_path, turn, f"{turn}; await asyncio.sleep(0.15)", max_turns=1, step_timeout_s=0.1)
    assert "s, and environment.step_timeout_s = 0.1" in slow[in_time]


def test_it_can_be_called_in_a_test_of_ones_own():
    assert_conforms(GUESS, NUMBERS, options={"hints": False})
    with pytest.raises(AssertionError, match=r"reset begins a conversation .*KeyError: 'number'"):
        assert_conforms(GUESS)


def test_the_template_of_a_model_is_tried_too(chat, tmp_path):
    found = asyncio.run(check(config.Environment(name="math_tool", options={"instructions": "Think."}), chat=chat))
    assert not any(found.values())


@pytest.mark.parametrize("name", ["math_tir", "math_tool", "single_turn"])
def test_what_is_built_in_conforms(name):
    assert_conforms(name, PROBLEMS)
