"""The judge's verdicts come from a confined child; whatever an answer does there, the next one is judged."""

import asyncio
import contextlib
import gc
import importlib.util
import os
import time

import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS

from pipeline import config, data
from pipeline.errors import ConfigError
from workers.environments.judge import Verdict, open_judge

HANGS = "10^{10^{10}}"


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@contextlib.contextmanager
def judging(loop, subject):
    opened = open_judge(subject, config.Environment(tool_concurrency=2))
    judge = loop.run(opened.__aenter__())
    try:
        yield lambda answer, problem: loop.run(judge(answer, problem))
    finally:
        loop.run(opened.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def math(loop):
    with judging(loop, "math") as judge:
        yield lambda answer, expected: judge(answer, {"answer": expected})


@pytest.fixture(scope="module")
def tasks(loop):
    with judging(loop, "tasks") as judge:
        yield judge


@pytest.mark.parametrize(
    ("answer", "expected", "score"),
    [
        ("34", "34", 1.0),
        ("034", 34, 1.0),
        (r"\frac12", "0.5", 1.0),
        ("(x+1)^2", "x^2 + 2x + 1", 1.0),
        (r"1,072", "1072", 1.0),
        (r"18 \text{ dollars}", "$18", 1.0),
        (r"x = 5", r"\boxed{5}", 1.0),
        ("35", "34", 0.0),
        ("34, 35", "34", 0.0),  # contains the right one
        ("34 or 35", "34", 0.0),
        ("", "34", 0.0),
        ("\x00\ud800{", "34", 0.0),
        ("\\" * 2000, "34", 0.0),
        ('"); print(1.0); ("', "34", 0.0),
    ],
)
def test_answers_are_equal_as_mathematics(math, answer, expected, score):
    assert math(answer, expected) == Verdict(score)


def test_an_answer_that_never_ends_is_no_answer_and_holds_up_nobody(loop):
    async def main():
        async with open_judge("math", config.Environment(tool_concurrency=2)) as judge:
            await judge("1", {"answer": "1"})  # the fork server is up
            begun = time.monotonic()
            hanging = asyncio.create_task(judge(HANGS, {"answer": "3"}))
            await asyncio.sleep(0.2)
            assert await judge("3", {"answer": "3"}) == Verdict(1.0)
            assert time.monotonic() - begun < 4 and not hanging.done()
            verdict = await hanging
            assert verdict == Verdict(0.0, "timeout") and verdict.metrics == {"judge_timeout": 1}
            assert time.monotonic() - begun < 15

    loop.run(main())


def test_a_verifier_that_evaluates_what_it_reads_does_so_in_confinement(tasks, tmp_path):
    """countdown's parses the answer as Python. In this process the same answer makes the file; the judge's child can
    not even see the folder."""
    problem = {"task": "countdown", "answer": "1", "question": "", "metadata": {"target": 1, "numbers": [1]}}
    answer = f'print.__self__.__import__("os").mkdir("{tmp_path}/made")'
    assert tasks(answer, problem).score < 1
    assert not (tmp_path / "made").exists()
    tmp_path.chmod(0o777)
    reasoning_gym.get_score_answer_fn("countdown")(answer, problem)
    assert (tmp_path / "made").exists(), "so that the test can fail"


def test_a_verifier_that_raises_gives_no_score_and_says_so(tasks):
    assert tasks("{", {"task": "prime_factorization", "answer": "1", "metadata": {}}) == Verdict(0.0, "exception")
    assert tasks("1", {"task": "no_such_task", "answer": "1"}) == Verdict(0.0, "exception")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a task's library leaves a file open
def test_every_task_gives_its_own_answers_the_score_that_it_gives_them_outside(tasks):
    """Problems travel as JSON, and verifiers may read files: neither may change a score."""
    different = {}
    for task in sorted(set(DATASETS) - {"composite"}):
        problem = next(data._generate(task, {}, 1, 3, "data"))
        if problem["answer"] is None:
            continue
        item = reasoning_gym.create_dataset(task, size=1, seed=3)[0]
        outside = reasoning_gym.get_score_answer_fn(task)(item["answer"], item)
        if (inside := tasks(str(item["answer"]), problem)) != Verdict(outside):
            different[task] = (outside, inside)
    gc.collect()
    assert different == {}


def test_a_judge_whose_library_is_missing_says_what_to_install(loop, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"math_tir judges with math_verify: pip install 'headrace\[math\]'"):
        loop.run(open_judge("math", config.Environment(name="math_tir")).__aenter__())


def test_nothing_of_the_judge_is_left(loop):
    async def main():
        async with open_judge("math", config.Environment()) as judge:
            await judge("1", {"answer": "1"})
            return (await judge.sandbox.server()).process.pid

    pid = loop.run(main())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
