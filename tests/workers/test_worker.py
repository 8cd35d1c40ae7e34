import asyncio
import os
import signal
import subprocess
import sys

import pytest
import redis

from pipeline import evals
from pipeline.config_file import to_toml
from pipeline.coordinator import Coordinator
from pipeline.data import training_problems
from pipeline.errors import OtherSettings
from pipeline.progress import read_processes
from pipeline.redis_server import RedisServer
from tests.workers.conftest import until, working
from tests.workers.fake_sglang import FakeSGLang, answer
from workers.admission import NoEngine
from workers.ledger import Ledger, LedgerGone

DIGEST16 = "0123456789abcdef"


@pytest.mark.sglang
def test_a_worker_fills_buffers_up_to_the_bound_and_drains(settings, ledger, chat, sglang, serve_label, run):
    serve_label(f"{run}:0:{DIGEST16}")
    config = settings()
    c = ledger(config, training_problems(config), sglang.url)

    async def main():
        async with working(config, c, chat) as worker:
            await until(lambda: c.status()["placed"] == 24 and not c.status()["reserved"])
            await until(lambda: worker.waiting.startswith("a place in the buffers"))
        assert worker.counts["episodes"] == worker.counts["placed"] == 24

    asyncio.run(main())
    batch = c.consume("trainer", 0)
    trajectories = c.fetch(batch.refs)
    assert len(trajectories) == 8
    for t in trajectories:
        assert t.action_tokens == sum(length for _, length, _, _ in t.segments) > 0
        assert {(engine, version) for _, _, engine, version in t.segments} == {("e0", 0)}
        assert (t.rollout_logprobs[t.loss_mask == 1] < 0).all()
        assert t.metrics["turns"] == len(t.segments) and t.reward == t.outcome
    assert c.status()["reserved"] == 0


@pytest.mark.sglang
def test_a_held_out_evaluation_is_claimed_and_leaves_no_trace_in_the_ledger(
    settings, ledger, chat, sglang, serve_label, run
):
    serve_label(f"{run}:0:{DIGEST16}")
    task = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
    config = settings(eval={"n": 2, "data": {"size": 6, "seed": 9, "tasks": {"chain_sum": task}}})
    c = ledger(config, [], sglang.url)
    evals.request(c.client, run, 0)

    async def main():
        async with working(config, c, chat):
            return await until(lambda: (e := evals.read(c.client, run, 0)).over and e)

    result = asyncio.run(main())
    assert (result.state, result.trajectories, result.error) == ("done", 12, "")
    assert 0 <= result.success <= 1
    assert c.status()["placed"] == 0


@pytest.mark.sglang
def test_the_program_drains_on_sigterm_and_leaves_nothing_in_flight(
    settings, ledger, sglang, serve_label, run, redis_url, tmp_path
):
    serve_label(f"{run}:0:{DIGEST16}")
    config = settings(buffers={"max_staleness": 40})
    c = ledger(config, training_problems(config), sglang.url)
    toml = tmp_path / "run.toml"
    toml.write_text(to_toml(config))
    command = [sys.executable, "-m", "workers", str(toml), "--name", "w7"]
    with subprocess.Popen(
        command, env=os.environ | {"REDIS_URL": redis_url}, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            asyncio.run(until(lambda: c.status()["placed"] >= 8 or process.poll() is not None, 60))
            (line,) = asyncio.run(until(lambda: read_processes(c.client, run)))
            assert (line["name"], line["role"]) == ("w7", "worker")
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0, log
    assert c.status()["reserved"] == 0 and read_processes(c.client, run) == []


# -- faults, with a scripted server in the engine's place


def faulty(settings, ledger, chat, run, script, then, **sections):
    """Run `then(worker, coordinator, server)` beside a worker whose engine follows `script(request, label)`."""

    async def main():
        label = f"{run}:0:{DIGEST16}"
        async with FakeSGLang(lambda request: script(request, label)).serving() as server:
            config = settings(**sections)
            c = await asyncio.to_thread(ledger, config, training_problems(config), server.url)
            async with working(config, c, chat) as worker:
                await then(worker, c, server)
            return c

    return asyncio.run(main())


def test_an_environment_that_raises_stops_the_run_with_its_cause(settings, ledger, chat, run, tmp_path, caplog):
    (tmp_path / "broken.py").write_text(
        "from workers.environments import Environment\n"
        "class Broken(Environment):\n"
        "    async def reset(self, prompt, seed):\n"
        "        raise KeyError('board')\n"
    )

    async def then(worker, c, server):
        await until(lambda: c.status()["stopped"])
        await until(lambda: worker.waiting.startswith("the run to go on: 6 failures in a row"))

    sections = {"environment": {"name": f"{tmp_path}/broken.py:Broken"}, "buffers": {"max_consecutive_failures": 6}}
    c = faulty(settings, ledger, chat, run, lambda request, label: "drop", then, **sections)
    assert c.status()["released"]["failed"] >= 6 and c.status()["reserved"] == 0
    assert "Broken.reset raised KeyError: 'board'" in caplog.text and "broken.py" in caplog.text


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("drop", "is gone"), (answer("other:0:0123456789abcdef"), "which were never published here")],
)
def test_an_engine_that_dies_or_serves_other_weights_gets_nothing_more_and_no_entry_is_lost(
    settings, ledger, chat, run, fault, reason
):
    healed = []

    async def then(worker, c, server):
        await until(lambda: c.engines()[0].state == "failed")
        assert reason in c.engines()[0].reason
        sentence = "an engine to go on with: no engine is ready: e0 is failed: "
        await until(lambda: read_processes(c.client, run)[0]["waiting"].startswith(sentence))
        asked = len(server.requests)
        assert c.status()["prompts"]["in flight"] == worker.routes.waiters == worker.in_flight
        await asyncio.sleep(0.3)
        assert len(server.requests) == asked
        healed.append(True)
        c.register_engine("e0", 0, server.url)
        await until(lambda: c.status()["placed"] == 24)
        assert c.status()["released"] == {}

    def script(request, label):
        return answer(label) if healed else fault

    faulty(settings, ledger, chat, run, script, then)


def test_a_drain_lets_episodes_finish_and_gives_back_the_rest(settings, ledger, chat, run):
    servers = []

    async def then(worker, c, server):
        await until(lambda: len(server.requests) == 8)
        servers.append(server)
        worker.drain()
        said = "its last 8 entries, for 1 s at most"
        await until(lambda: [p["waiting"] for p in read_processes(c.client, run)] == [said])

    c = faulty(settings, ledger, chat, run, lambda request, label: "hang", then, rollout={"grace_s": 1})
    assert c.status()["reserved"] == 0 and c.status()["released"] == {"cancelled": 8}
    assert sorted(servers[0].aborted) == sorted(request["rid"] for request in servers[0].requests)
    assert c.status()["prompts"]["idle"] == 16


def test_an_entry_that_the_ledger_took_back_is_stopped_at_the_engine(settings, ledger, chat, run):
    async def then(worker, c, server):
        await until(lambda: len(server.requests) == 1)
        (entry,) = worker.entries
        assert c.release(entry, "retry")
        await until(lambda: len(server.aborted) == 1 and entry not in worker.entries)

    sections = {"rollout": {"concurrency": 1, "grace_s": 0}, "buffers": {"lease_s": 0.6}}
    faulty(settings, ledger, chat, run, lambda request, label: "hang", then, **sections)


def test_a_drain_in_the_ledger_ends_the_worker_long_before_its_next_renewal(settings, ledger, chat, run):
    async def then(worker, c, server):
        await until(lambda: worker.counts["episodes"] > 0)
        c.drain(worker.incarnation)
        await until(lambda: worker.draining)

    faulty(settings, ledger, chat, run, lambda request, label: answer(label), then, buffers={"lease_s": 600})


def test_a_renewal_that_is_wanted_as_its_worker_ends_does_not_keep_it_from_ending(settings, ledger, chat):
    config = settings()
    c = ledger(config, [], "http://127.0.0.1:9")

    async def main():
        async with working(config, c, chat) as worker:
            for steps in range(6):  # of the loop, between what wakes it and its end
                renewal = asyncio.create_task(worker._renew())
                await asyncio.sleep(0.05)
                worker.renew_now.set()
                for _ in range(steps):
                    await asyncio.sleep(0)
                renewal.cancel()
                await asyncio.wait([renewal], timeout=3)
                assert renewal.cancelled(), steps

    asyncio.run(main())


def test_a_worker_with_other_settings_refuses_to_join(settings, ledger, chat):
    c = ledger(settings(), [], "http://127.0.0.1:9")

    async def main():
        async with working(settings(rollout={"temperature": 0.5}), c, chat):
            await asyncio.sleep(0.2)

    with pytest.raises(OtherSettings, match=r"start it with the run's own run\.toml"):
        asyncio.run(main())


def test_a_worker_that_waits_for_its_run_can_be_drained(settings, chat, redis_url, run):
    async def main():
        with redis.Redis.from_url(redis_url) as client:
            async with working(settings(), Coordinator(client, run), chat):
                line = await until(lambda: read_processes(client, run))
                assert line[0]["waiting"] == f"run {run} to be created by the coordinator"

    asyncio.run(main())


def test_without_any_engine_a_worker_ends_after_the_time_that_one_takes_to_start(settings, ledger, chat):
    config = settings(engines={"start_timeout_s": 0.3, "load_timeout_s": 0.3})
    c = ledger(config, training_problems(config), "http://127.0.0.1:9")
    c.remove_engine("e0")

    async def main():
        async with working(config, c, chat):
            await asyncio.sleep(3)

    with pytest.raises(NoEngine, match="no engine is registered; start one"):
        asyncio.run(main())


def test_redis_that_stays_away_ends_the_worker_with_what_to_do(settings, chat, tmp_path, run):
    server = RedisServer.start(tmp_path / "redis")
    config = settings()

    async def main():
        with redis.Redis.from_url(server.url) as client:
            c = Coordinator.create(client, run, config.ledger_settings)
            async with working(config, c, chat) as worker:
                worker.ledger.patience_s = 1.0
                await until(lambda: worker.waiting)
                server.stop()
                await until(lambda: worker.ledger.away)

    with pytest.raises(LedgerGone, match="has not answered for 1 s"):
        asyncio.run(main())


def test_a_call_is_repeated_until_redis_is_back():
    answers = [redis.ConnectionError("refused"), redis.TimeoutError("slow"), 42]

    def call():
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    ledger = Ledger(coordinator=None)
    assert asyncio.run(ledger(call)) == 42 and ledger.away == ""
