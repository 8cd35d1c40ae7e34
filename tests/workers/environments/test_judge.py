"""The judge's verdicts come from a confined child; whatever an answer does there, the next one is judged."""

import asyncio
import contextlib
import gc
import importlib.util
import os
import signal

import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS

from pipeline import config, data
from pipeline.errors import ConfigError
from tests.workers.sandbox.test_life import children, until
from workers.environments import evaluated
from workers.environments.judge import LIMITS, JudgeFailed, Verdict, innocent, open_judge, verdict
from workers.sandbox import ToolResult

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
        ('print.__self__.exec("import sys; print(1.0); sys.stdout = None")', "34", 0.0),
    ],
)
def test_answers_are_equal_as_mathematics(math, answer, expected, score):
    assert math(answer, expected) == Verdict(score)


def test_an_answer_that_never_ends_is_no_answer_and_holds_up_nobody(loop):
    async def main():
        async with open_judge("math", config.Environment(tool_concurrency=2)) as judge:
            await judge("1", {"answer": "1"})  # the fork server is up
            hanging = asyncio.create_task(judge(HANGS, {"answer": "3"}))
            await asyncio.sleep(0.2)
            assert await judge("3", {"answer": "3"}) == Verdict(1.0)
            assert not hanging.done()
            verdict = await asyncio.wait_for(hanging, 60)
            assert verdict == Verdict(0.0, "timeout") and verdict.metrics == {"judge_timeout": 1}

    loop.run(main())


# The judge's code prints the score: a reply that runs code there says which.
AWARD = "import sys; print({}); sys.stdout = None"
RUN = (
    'print.__self__.exec("{}")',
    "sin('print.__self__.exec(\\'{}\\')')",
    '[x for x in [print.__self__.exec("{}")]]',
    'print.__self__.exec("{}") !',
)


@pytest.mark.parametrize("form", RUN)
@pytest.mark.parametrize("task", sorted(evaluated.EXPRESSIONS | evaluated.LISTS))
def test_no_reply_runs_code_where_it_could_award_itself_a_score(tasks, task, form):
    problem = next(data._generate(task, {}, 1, 3, "data"))
    assert tasks(form.format(AWARD.format("1.0")), problem).score < 0.1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_other_verifier_evaluates_what_it_reads(tasks):
    for task in sorted(set(DATASETS) - {"composite"} - evaluated.EXPRESSIONS - evaluated.LISTS):
        problem = next(data._generate(task, {}, 1, 3, "data"))
        assert tasks(RUN[0].format(AWARD.format("0.987")), problem).score != 0.987, task
    gc.collect()


@pytest.mark.parametrize(
    ("task", "answer", "harmless"),
    [
        ("countdown", "94*4 - 61 / (6 + 2)", True),
        ("countdown", " 94 * 4\n", True),
        ("intermediate_integration", "-x*exp(-x)/2 + sqrt(2)*asin(x)*log(Abs(x)) + pi*C", True),
        ("polynomial_multiplication", "-15*x**2*y + 3.5", True),
        ("countdown", "open(1)", False),
        ("countdown", "x.y", False),
        ("countdown", "'1'", False),
        ("countdown", "1 +", False),
        ("countdown", "(" * 5000, False),
        ("n_queens", '[["_", "Q"], ["Q", "_"]]', True),
        ("n_queens", "_ Q\nQ _", True),
        ("spiral_matrix", "[1, -2, 3]", True),
        ("string_insertion", "ABCD", True),
        ("string_insertion", "[chr(1)]", False),
        ("string_insertion", "[x[1] for x in y]", False),
        ("gcd", "open(1)", True),
    ],
)
def test_arithmetic_and_lists_are_harmless_and_nothing_else(task, answer, harmless):
    assert evaluated.harmless(answer, task) is harmless


@pytest.mark.parametrize(
    ("printed", "given"),
    [
        ("0.25", Verdict(0.25)),
        ("1", Verdict(1.0)),
        ("1e30", Verdict(0.0, "junk")),
        ("-1", Verdict(0.0, "junk")),
        ("nan", Verdict(0.0, "junk")),
        ("one", Verdict(0.0, "junk")),
        ("", Verdict(0.0, "junk")),
    ],
)
def test_a_verdict_is_a_number_from_0_to_1(printed, given):
    assert verdict(ToolResult(f"0.5\n{printed}\n" if printed else "", None, 0.1, False)) == given


def test_only_what_others_may_have_caused_is_judged_again():
    assert not any(innocent(ToolResult("", error, 6.0, True)) for error in (None, "timeout", "memory", "exception"))
    assert innocent(ToolResult("", "crashed", 0.1, True))
    assert innocent(ToolResult("", "timeout", LIMITS.seconds, True))


def test_a_child_that_is_taken_away_is_judged_once_more_and_then_fails_the_episode(loop):
    async def main(kills):
        async with open_judge("math", config.Environment()) as judge:
            await judge("1", {"answer": "1"})
            server = (await judge.sandbox.server()).process.pid
            await until(lambda: not children(server))
            judging = asyncio.create_task(judge(HANGS, {"answer": "3"}))
            for _ in range(kills):
                await until(lambda: children(server))
                (child,) = children(server)
                os.kill(child, signal.SIGKILL)
                await until(lambda: child not in children(server))  # noqa: B023
            return await judging

    assert loop.run(main(1)) == Verdict(0.0, "timeout")
    with pytest.raises(JudgeFailed, match=r"2 times no verdict on '10.*, the last one crashed after"):
        loop.run(main(2))


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
