"""Replies whose engine aborts, dies or serves something else, against scripted servers and the real ledger."""

import asyncio
import contextlib
from collections import Counter
from types import SimpleNamespace

import pytest

from tests.workers.conftest import DIGEST
from tests.workers.fake_sglang import FakeSGLang, answer
from workers.continuation import Continuation
from workers.engine import connections, sampling
from workers.ledger import Ledger
from workers.routing import NoEngine, Routes
from workers.time_limit import TimeLimit


@pytest.fixture
def journey(settings, ledger, chat, run):
    """journey(body, *scripts, **sections): await body(what an episode has) beside a scripted server an engine.

    A script is called with the request and a function that gives the label of a version.
    """

    def label(version):
        return f"{run}:{version}:{DIGEST[:16]}"

    async def main(body, scripts, sections):
        async with contextlib.AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(FakeSGLang(lambda request, s=s: s(request, label)).serving())
                for s in scripts
            ]
            http = await stack.enter_async_context(connections())
            config = settings(**sections)
            c = await asyncio.to_thread(ledger, config, [], servers[0].url)
            for number, server in enumerate(servers):
                await asyncio.to_thread(c.register_engine, f"e{number}", 0, server.url)
            routes = Routes(config, Ledger(c), http, sampling(config.rollout, chat.end_token))
            await routes.refresh()
            counts, time_limit = Counter(), TimeLimit(config.environment.episode_timeout_s)
            generator = Continuation("entry-1", "e0", routes, chat, config.rollout.stop, time_limit, counts)
            with generator:
                await body(
                    SimpleNamespace(
                        c=c, routes=routes, generator=generator, servers=servers, counts=counts, time_limit=time_limit
                    )
                )
            assert routes.in_flight.total() == 0 and routes.waiters == 0

    return lambda body, *scripts, **sections: asyncio.run(main(body, scripts, sections))


async def publish(case, version, *engines):
    """The trainer's and the coordinator's part."""
    c = case.c
    await asyncio.to_thread(c.publish, "trainer", version, f"weights/{version}", DIGEST)
    for name in engines:
        await asyncio.to_thread(c.register_engine, name, version, case.routes.ready[name].url)
    await case.routes.refresh()


def consumed(case, versions):
    """The ledger at a head that allows publications: nothing here is about buffers."""
    case.c.client.hset(f"hr:{{{case.c.run}}}", "head", versions)


def parts(reply):
    return reply.tokens, reply.logprobs.tolist(), reply.finish_reason, [tuple(s) for s in reply.segments]


def test_an_aborted_reply_goes_on_with_its_tokens_under_the_newer_weights(journey):
    requests = []

    def script(request, label):
        requests.append(request)
        if len(requests) == 1:
            return answer(label(0), (5, 6, 7), finish="abort")
        return answer(label(1), (8, 2))

    async def body(case):
        await asyncio.to_thread(consumed, case, 1)
        task = asyncio.create_task(case.generator.generate([10, 11], 8, 0))
        await asyncio.sleep(0)
        await publish(case, 1, "e0")
        reply = await task
        assert parts(reply) == ([5, 6, 7, 8, 2], [-1, -2, -3, -1, -2], "stop", [(0, 3, "e0", 0), (3, 2, "e0", 1)])
        assert case.counts == {"continued": 1}

    journey(body, script)
    assert [r["input_ids"] for r in requests] == [[10, 11], [10, 11, 5, 6, 7]]
    assert [r["sampling_params"]["max_new_tokens"] for r in requests] == [8, 5]
    assert requests[0]["rid"] != requests[1]["rid"]


@pytest.mark.parametrize("fault", ["drop", (500, "boom"), answer("base"), answer("other:0:0123456789abcdef")])
def test_an_engine_that_dies_or_serves_other_weights_is_left_with_what_came_before(journey, fault):
    first = [answer, fault]

    def script(request, label):
        fault = first.pop(0)
        return answer(label(0), (5,), finish="abort") if fault is answer else fault

    async def body(case):
        case.routes.in_flight["e1"] += 1  # so that e0 is asked twice
        reply = await case.generator.generate([10], 8, 0)
        case.routes.in_flight["e1"] -= 1
        assert parts(reply) == ([5, 8, 2], [-1, -1, -2], "stop", [(0, 1, "e0", 0), (1, 2, "e1", 0)])
        (e0, e1) = await asyncio.to_thread(case.c.engines)
        assert (e0.state, e1.state) == ("failed", "ready")
        assert case.servers[1].requests[0]["input_ids"] == [10, 5]
        assert case.counts == {"continued": 1, "migrated": 1}

    journey(body, script, lambda request, label: answer(label(0), (8, 2)))


def test_a_reply_that_was_aborted_at_its_last_token_is_as_long_as_it_may_be(journey):
    async def body(case):
        assert parts(await case.generator.generate([10], 3, 0))[2] == "length"
        assert len(case.servers[0].requests) == 1

    journey(body, lambda request, label: answer(label(0), (5, 6, 7), finish="abort"))


def test_pieces_of_one_engine_and_version_are_one_segment(journey):
    pieces = [((5,), "abort"), ((), "abort"), ((6, 2), "stop")]

    def script(request, label):
        tokens, finish = pieces.pop(0)
        return answer(label(0), tokens, finish=finish)

    async def body(case):
        assert parts(await case.generator.generate([10], 8, 0))[3] == [(0, 3, "e0", 0)]

    journey(body, script)


def test_nothing_goes_to_an_engine_below_the_entrys_version(journey):
    async def body(case):
        await asyncio.to_thread(consumed, case, 1)
        await publish(case, 1, "e1")
        case.routes.in_flight["e1"] += 5
        assert (await case.generator.generate([10], 8, 1)).segments == [(0, 2, "e1", 1)]
        case.routes.in_flight["e1"] -= 5
        assert not case.servers[0].requests

    journey(body, lambda request, label: answer(label(0)), lambda request, label: answer(label(1)))


def test_a_wait_for_an_engine_is_bounded_and_not_on_the_episodes_clock(journey):
    async def body(case):
        await asyncio.to_thread(case.c.mark_engine, "e0", "loading", "version 3")
        await case.routes.refresh()
        async with case.time_limit:  # of 0.1 s
            with pytest.raises(
                NoEngine, match=r"no engine serves version 0 or newer \(no engine is ready: e0 is loading: version"
            ):
                await case.generator.generate([10], 8, 0)

    limits = {"start_timeout_s": 0.3, "load_timeout_s": 0.1}
    journey(body, lambda request, label: "drop", engines=limits, environment={"episode_timeout_s": 0.1})


def test_a_stop_string_across_two_pieces_ends_the_reply(journey, chat):
    text = chat.encode("<answer>4</answer> and more")
    end = next(n for n in range(len(text)) if "</answer>" in chat.text(text[:n]))
    pieces = [(text[: end - 1], "abort"), (text[end - 1 :], "length")]

    def script(request, label):
        tokens, finish = pieces.pop(0)
        return answer(label(0), tokens, finish=finish)

    async def body(case):
        reply = await case.generator.generate([10], 40, 0)
        assert (reply.tokens, reply.finish_reason) == (text[:end], "stop_string")
        assert len(reply.logprobs) == end and reply.segments == [(0, end, "e0", 0)]
        assert case.servers[0].requests[0]["sampling_params"]["stop"] == ["</answer>"]

    journey(body, script, rollout={"stop": ["</answer>"], "max_tokens": 40})


def test_a_truncated_reply_keeps_what_the_engine_had(journey):
    async def body(case):
        server = case.servers[0]

        async def hanging(request):
            await server.until_aborted(request)
            return answer(f"{case.c.run}:0:{DIGEST[:16]}", (5, 6, 7), finish="abort")

        server.script = hanging
        task = asyncio.create_task(case.generator.generate([10], 8, 0))
        while not server.running:
            await asyncio.sleep(0.01)
        assert await case.generator.truncate()
        assert parts(await task) == ([5, 6, 7], [-1, -2, -3], "truncated", [(0, 3, "e0", 0)])
        assert not await case.generator.truncate()

    journey(body, lambda request, label: "hang")


def test_a_reply_that_is_truncated_while_it_waits_for_an_engine_keeps_its_pieces(journey):
    async def body(case):
        async with case.time_limit:
            await asyncio.to_thread(case.c.mark_engine, "e0", "loading")  # this worker hears of it with the abort
            task = asyncio.create_task(case.generator.generate([10], 8, 0))
            while not case.routes.waiters:
                await asyncio.sleep(0.01)
            assert not await case.generator.truncate()
            task.cancel()
            assert parts(await task) == ([5, 6], [-1, -2], "truncated", [(0, 2, "e0", 0)])

    journey(body, lambda request, label: answer(label(0), (5, 6), finish="abort"))
