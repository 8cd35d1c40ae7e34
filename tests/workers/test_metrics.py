import asyncio

from pipeline.data import training_problems
from tests.fixtures_ledger import refusals_of_reserve
from tests.workers.conftest import until, working
from tests.workers.fake_sglang import FakeSGLang, answer
from workers.metrics import REFUSALS, WorkerMetrics


def told(worker):
    families = WorkerMetrics(worker, "w0").families()
    return {
        f.name.removeprefix("headrace_worker_"): {tuple(labels.values())[1:]: value for labels, value in f.samples}
        for f in families
    }


def test_a_worker_tells_what_it_plays_what_came_of_it_and_what_it_waits_for(settings, ledger, chat, run):
    label = f"{run}:0:0123456789abcdef"
    seen = {}

    async def main():
        failed = []

        def script(request):
            return answer(label) if failed else failed.append(request) or (400, "no")

        async with FakeSGLang(script).serving() as server:
            config = settings(buffers={"batch_size": 4, "max_staleness": 0})
            c = await asyncio.to_thread(ledger, config, training_problems(config), server.url)
            async with working(config, c, chat) as worker:
                seen.update(told(worker))
                assert seen["entries_total"] == {(o,): 0 for o in ("placed", "surplus", "filtered", "refused")}
                await until(lambda: worker.counts["placed"] == 4 and worker.admission.seconds["FULL"] > 0)
                seen.update(told(worker))

    asyncio.run(main())
    assert seen["in_flight_episodes"] == {(): 0} and seen["concurrency_episodes"] == {(): 8}
    assert seen["entries_total"][("placed",)] == 4 and seen["episodes_total"] == {(): 4}
    assert seen["generated_tokens_total"][()] > 0 and seen["tool_calls_total"] == {(): 0}
    assert {code: n for (code,), n in seen["failures_total"].items() if n} == {"engine_refused": 1}
    assert seen["failures_total"].keys() >= {("environment",), ("engine_gone",)}, "the first one shall be an increase"
    assert seen["refusals_total"][("FULL",)] > 0 < seen["refused_seconds_total"][("FULL",)]
    assert seen["refusals_total"][("MEMORY",)] == seen["refused_seconds_total"][("MEMORY",)] == 0
    assert seen["episode_seconds_total"][("generate",)] > 0 < seen["episode_seconds_total"][("environment",)]
    assert seen["evaluating"] == seen["without_engine_episodes"] == {(): 0}


def test_every_refusal_has_its_place_before_it_happens():
    assert refusals_of_reserve() == set(REFUSALS)
