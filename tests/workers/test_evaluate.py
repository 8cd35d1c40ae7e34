import asyncio
import json

import pytest

from pipeline import first_values
from pipeline.data import training_problems
from pipeline.ledger_types import Reservation
from pipeline.weights import write_manifest
from tests.workers.fake_sglang import FakeSGLang, answer
from workers import seeds
from workers.evaluate import EvaluationFailed, evaluation, summarize, values

TASK = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
EVAL = {"n": 2, "data": {"size": 3, "seed": 5, "tasks": {"chain_sum": TASK}}}


def label(run, version):
    return f"{run}:{version}:0123456789abcdef"


def version_0(settings):
    """As much of it as says which weights the values are of."""
    folder = settings.folder / "weights" / "0"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"tensors")
    write_manifest(folder, 0, [1, 2], [-1.0], "float32")


def lines(settings):
    return [json.loads(line) for line in (settings.folder / "values.jsonl").read_text().splitlines()]


@pytest.mark.sglang
def test_values_are_n_outcomes_a_problem_and_only_what_is_missing_is_played(settings, sglang, serve_label, run):
    serve_label(label(run, 0))
    config = settings(advantage={"offline_rollouts": 3}, rollout={"max_tokens": 8, "context_length": 128})
    problems = training_problems(config)
    version_0(config)
    first_values.add(config, problems[0], [1.0, 0.5, 0.0])
    marked = lines(config)[0]
    with (config.folder / "values.jsonl").open("a") as file:
        file.write(json.dumps(marked | {"id": problems[1]["id"]})[:-9])  # torn
    asyncio.run(values(config, [sglang.url]))
    found = lines(config)
    assert found[0] == marked
    assert sorted(line["id"] for line in found) == sorted(problem["id"] for problem in problems)
    assert all(len(line["outcomes"]) == 3 and set(line["outcomes"]) <= {0.0, 0.5, 1.0} for line in found)
    before = (config.folder / "values.jsonl").read_bytes()
    asyncio.run(values(config, ["http://127.0.0.1:9"]))  # nothing is missing: nobody is asked
    assert (config.folder / "values.jsonl").read_bytes() == before


def test_first_values_are_of_other_episodes_than_the_first_visits_even_if_seeds_decide_all(settings, run):
    config = settings(advantage={"offline_rollouts": 3})
    version_0(config)

    async def main():
        async with FakeSGLang(lambda request: answer(label(run, 0))).serving() as server:
            await values(config, [server.url])
            return server.requests

    requests = asyncio.run(main())
    played = {request["sampling_params"]["sampling_seed"] for request in requests}
    problems = training_problems(config)
    assert len(played) == 3 * len(problems), "each rollout has its own"
    visits = [Reservation("e", p["id"], b"", 0, 0, 0, 0.5, 1, visit) for p in problems for visit in range(3)]
    assert not played & {seeds.of_replies(config.run.seed, visit) for visit in visits}


@pytest.mark.sglang
def test_an_evaluation_says_which_version_it_is_of(settings, sglang, serve_label, run):
    serve_label(label(run, 12))
    result = asyncio.run(evaluation(settings(eval=EVAL), [sglang.url]))
    assert (result["version"], result["trajectories"]) == (12, 6)
    assert 0 <= result["success"] <= 1


def test_an_evaluation_across_two_versions_is_none(settings, run):
    versions = iter([3] * 4 + [4] * 100)

    async def main(version):
        async with FakeSGLang(lambda request: answer(label(run, next(versions)))).serving() as server:
            return await evaluation(settings(eval=EVAL), [server.url], version)

    with pytest.raises(EvaluationFailed, match=r"expected replies of version 3, found \[4\]"):
        asyncio.run(main(3))
    versions = iter([3] * 4 + [4] * 100)
    with pytest.raises(EvaluationFailed, match=r"serve one version, found \[3, 4\]"):
        asyncio.run(main(None))


def test_a_failure_is_no_outcome_it_is_tried_again(settings, run):
    faults = ["drop", (500, "boom")]

    async def main():
        script = FakeSGLang(lambda request: faults.pop() if faults else answer(label(run, 0)))
        async with script.serving() as server:
            return await evaluation(settings(eval=EVAL), [server.url])

    assert asyncio.run(main())["trajectories"] == 6 and not faults


def test_a_prompt_that_is_too_long_is_not_tried_again_and_says_what_to_do(settings):
    config = settings(eval=EVAL, rollout={"context_length": 5, "max_tokens": 2})
    with pytest.raises(EvaluationFailed, match=r"context_length = 5 leaves no room for a reply: raise it, or leave"):
        asyncio.run(evaluation(config, ["http://127.0.0.1:9"]))


def test_the_standard_error_is_over_problems():
    assert summarize([[1.0, 0.0], [1.0, 0.0]]) == (0.5, 0.0)
    success, stderr = summarize([[1.0, 1.0], [0.0, 0.0]])
    assert (success, stderr) == (0.5, pytest.approx(0.5))
