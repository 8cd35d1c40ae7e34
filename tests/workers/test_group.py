"""Entries of several members, in a whole worker against a scripted server."""

import asyncio
from collections import Counter

import pytest

from pipeline.data import training_problems
from pipeline.trajectory import Trajectory
from tests.fixtures_sglang import running, slow_down
from tests.workers.conftest import DIGEST, until, working
from tests.workers.fake_sglang import FakeSGLang, answer

GROUPS = {"batch_size": 1, "max_staleness": 0, "group_size": 2, "lease_s": 60}


@pytest.fixture
def entry(settings, ledger, chat, run):
    """entry(script, then, **sections): a worker plays entries, one at a time, whose requests `script(server, request,
    label)` answers; `await then(worker, coordinator, server)` beside it."""

    async def main(script, then, sections):
        launch = sections.get("buffers", {}).get("group_launch", 2)
        config = settings(
            **{"rollout": {"concurrency": launch, "grace_s": 0}}
            | sections
            | {"buffers": GROUPS | sections.get("buffers", {})}
        )
        label = f"{run}:0:{DIGEST[:16]}"
        server = FakeSGLang(None)
        server.script = lambda request: script(server, request, label)
        async with server.serving():
            c = await asyncio.to_thread(ledger, config, training_problems(config), server.url)
            async with working(config, c, chat) as worker:
                await then(worker, c, server)

    return lambda script, then, **sections: asyncio.run(main(script, then, sections))


def placed(c) -> list[Trajectory]:
    """The members of the first entry, as the trainer gets them."""
    return c.fetch(c.consume("trainer", 0).refs)


def test_the_first_members_that_finish_are_handed_in_and_the_rest_is_stopped_at_the_engine(entry):
    async def script(server, request, label):
        if len(server.requests) == 2:
            await server.until_aborted(request)
            return answer(label, finish="abort")
        await asyncio.sleep(0.1 * len(server.requests))
        return answer(label, (len(server.requests), 2))

    async def then(worker, c, server):
        await until(lambda: c.status()["placed"] == 1)
        assert server.aborted == [server.requests[1]["rid"]] and not server.running
        members = await asyncio.to_thread(placed, c)
        assert [t.member for t in members] == [0, 1] and len({t.entry for t in members}) == 1
        assert worker.counts["stopped"] == 1 and worker.counts["episodes"] == 2
        assert len(server.requests) == 3 and server.requests[0]["input_ids"] == server.requests[1]["input_ids"]

    entry(script, then, buffers={"group_launch": 3})


def test_episodes_of_a_filtered_entry_are_not_among_the_placed_ones(entry):
    async def script(server, request, label):
        return answer(label)

    async def then(worker, c, server):
        await until(lambda: worker.counts["filtered"] >= 2)
        assert worker.counts["episodes"] == worker.counts["placed"] == 0 < worker.counts["action_tokens"]

    entry(script, then, buffers={"filter_metric": "acc"})


def test_a_member_that_fails_is_played_again_alone(entry, caplog):
    async def script(server, request, label):
        if len(server.requests) in (1, 3):
            return (400, "no")
        await asyncio.sleep(0.5)
        return answer(label)

    async def then(worker, c, server):
        await until(lambda: c.status()["placed"] == 1)
        assert len(server.requests) == 4, "its sibling asked once"
        assert (worker.counts["failures"], worker.counts["failed_engine_refused"]) == (2, 2)
        assert c.status()["released"] == {}

    entry(script, then)


def test_an_entry_whose_member_keeps_failing_is_given_back_and_its_members_stopped(entry):
    async def script(server, request, label):
        if len(server.requests) == 2:
            await server.until_aborted(request)
            return answer(label, finish="abort")
        return (400, "no")

    async def then(worker, c, server):
        await until(lambda: c.status()["released"].get("failed"))
        assert server.aborted == [server.requests[1]["rid"]]
        worker.drain()

    entry(script, then)


def test_a_spare_member_makes_up_for_one_that_keeps_failing(entry):
    async def script(server, request, label):
        if len(server.requests) in (1, 4, 5):  # the first member; its siblings take two seconds for their only reply
            return (400, "no")
        await asyncio.sleep(2)
        return answer(label)

    async def then(worker, c, server):
        await until(lambda: c.status()["placed"] == 1)
        assert worker.counts["failures"] == 3 and c.status()["released"] == {}

    entry(script, then, buffers={"group_launch": 3})


def test_an_entry_that_the_ledger_takes_back_stops_all_its_members_at_once(entry):
    async def script(server, request, label):
        await server.until_aborted(request)
        return answer(label, finish="abort")

    async def then(worker, c, server):
        await until(lambda: len(server.requests) == 2)
        (name,) = worker.entries
        assert await asyncio.to_thread(c.release, name, "retry")
        await until(lambda: len(server.aborted) == 2, 5)  # the lease is of 60 s: the bell did it
        await until(lambda: name not in worker.entries)

    entry(script, then)


@pytest.mark.sglang
def test_a_real_server_stops_generating_for_the_members_of_an_entry_that_is_taken_back(
    settings, ledger, chat, sglang, serve_label, run
):
    serve_label(f"{run}:0:{DIGEST[:16]}")
    long = {"concurrency": 3, "grace_s": 0, "max_tokens": 900, "context_length": 1000}
    config = settings(rollout=long, buffers=GROUPS | {"group_size": 3})
    c = ledger(config, training_problems(config), sglang.url)

    async def main():
        async with working(config, c, chat) as worker:
            await until(lambda: running(sglang.url) > 0)
            (name,) = worker.entries
            c.pause()
            assert c.release(name, "retry")
            await until(lambda: running(sglang.url) == 0 and not worker.entries, 20)

    try:
        slow_down(sglang.url, 0.2)  # 900 tokens would take three minutes
        asyncio.run(main())
    finally:
        slow_down(sglang.url, None)


TRUNCATE = {"proactive": "truncate", "proactive_patience_s": 0.3, "proactive_threshold": 4}


async def awaited(c):
    """The trainer waits and the coordinator looks, until the filter acts."""

    def look():
        c.consume("trainer", 0)
        c.reap()
        return any(event.kind == "truncate" for event in c.wait("0", 0))

    await until(look)


def test_a_truncated_entry_is_handed_in_with_what_it_has(entry, chat):
    async def script(server, request, label):
        if len(server.requests) == 1:
            return answer(label, (5, 2))  # a reply without an answer: this member is done
        await server.until_aborted(request)
        return answer(label, (6, 7), finish="abort")

    async def then(worker, c, server):
        await until(lambda: len(server.requests) == 2)
        await awaited(c)
        await until(lambda: c.status()["placed"] == 1, 5)
        done, cut = await asyncio.to_thread(placed, c)
        assert (done.finish_reason, cut.finish_reason) == ("stop", "truncated")
        assert (cut.metrics["truncated"], cut.reward, cut.tokens[-2:].tolist()) == (1, 0, [6, 7])
        assert cut.loss_mask[-3:].tolist() == [0, 1, 1]

    entry(script, then, buffers=TRUNCATE)


def test_a_truncated_entry_without_a_token_is_given_back_for_another_try(entry):
    async def script(server, request, label):
        await server.until_aborted(request)
        return answer(label, (), finish="abort")

    async def then(worker, c, server):
        await until(lambda: len(server.requests) == 2)
        await awaited(c)
        await until(lambda: c.status()["released"] == {"retry": 1}, 5)

    entry(script, then, buffers=TRUNCATE | {"proactive_patience_s": 2})


def test_groups_of_an_environment_that_is_slow_to_act_are_truncated_within_their_step(entry, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import asyncio\nfrom workers.environments import Environment, Turn\n"
        "class Slow(Environment):\n"
        "    async def reset(self, prompt, seed):\n        return Turn([{'role': 'user', 'content': 'go'}])\n"
        "    async def step(self, reply):\n        await asyncio.sleep(40)\n"
    )

    async def then(worker, c, server):
        await until(lambda: len(server.requests) == 2)
        await awaited(c)
        await until(lambda: c.status()["placed"] == 1, 5)
        found = Counter(t.finish_reason for t in await asyncio.to_thread(placed, c))
        assert found == {"truncated": 2}

    environment = {"name": f"{tmp_path}/slow.py:Slow"}
    entry(lambda server, request, label: answer(label), then, buffers=TRUNCATE, environment=environment)
