import os
import runpy
import time
from pathlib import Path

import pytest

from pipeline import keys, progress
from pipeline.progress import Progress, read_metrics, read_processes, read_shares, record_metrics
from pipeline.redis_client import connect

HEALTHY = str(Path(__file__).parents[2] / "docker/headrace/healthy.py")


def test_each_process_says_what_it_waits_for(client, run):
    trainer, worker = Progress(client, run, "trainer", "trainer"), Progress(client, run, "worker-0", "worker")
    trainer.waiting("buffer 12: 40 of 64 occupied, 24 in flight", step=12)
    worker.working(episodes=3, tokens_s=12.5)
    first, second = read_processes(client, run)
    assert first["name"] == "trainer" and first["pid"] == os.getpid()
    assert first["waiting"] == "buffer 12: 40 of 64 occupied, 24 in flight" and first["step"] == 12
    assert second | {"waiting": "", "episodes": 3, "tokens_s": 12.5, "role": "worker"} == second


@pytest.mark.parametrize("host", ["123456789012", "1234567e8901", "infinity", "0x10"])
def test_a_host_whose_name_is_a_number_stays_a_name(client, run, monkeypatch, host):
    monkeypatch.setattr(progress.socket, "gethostname", lambda: host)
    Progress(client, run, "17", "worker").waiting("12", version=12)
    (found,) = read_processes(client, run)
    assert found | {"name": "17", "host": host, "waiting": "12", "version": 12} == found


def test_a_container_whose_name_is_a_number_is_healthy(redis_url, tmp_path, monkeypatch):
    (tmp_path / "run.toml").write_text('[run]\nname = "healthy"\n')
    monkeypatch.setenv("HEADRACE_RUN", str(tmp_path / "run.toml"))
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setattr(progress.socket, "gethostname", lambda: "1234567e8901")
    with connect(redis_url) as client:
        with pytest.raises(SystemExit, match="1234567e8901 has no line"):
            runpy.run_path(HEALTHY)
        process = Progress(client, "healthy", "worker-0", "worker")
        process.working()
        runpy.run_path(HEALTHY)
        process.done()


def test_a_call_in_every_pass_of_a_loop_writes_twice_a_second(client, run, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    process, shown = Progress(client, run, "trainer", "trainer"), []
    for tick in range(200):
        process.waiting(f"pass {tick}")
        clock[0] += 0.01
        shown.append(read_processes(client, run)[0]["waiting"])
    assert len(set(shown)) == 4


def test_a_change_between_waiting_and_working_is_shown_at_once_with_its_time(client, run, monkeypatch):
    clock, ms = [100.0], [5000]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress, "_now_ms", lambda: ms[0])
    process = Progress(client, run, "trainer", "trainer")
    process.working()
    clock[0], ms[0] = 100.2, 5200
    process.waiting("buffer 3: 1 of 4 occupied")
    assert [p["since_ms"] for p in read_processes(client, run)] == [5200]
    clock[0], ms[0] = 100.8, 5800
    process.waiting("buffer 3: 2 of 4 occupied")
    shown = [(p["waiting"], p["since_ms"]) for p in read_processes(client, run)]
    assert shown == [("buffer 3: 2 of 4 occupied", 5200)]
    clock[0], ms[0] = 101.4, 6400
    process.waiting("buffer 4: 0 of 4 occupied")  # another wait, without work in between
    assert [p["since_ms"] for p in read_processes(client, run)] == [6400]


def test_a_silent_process_is_gone_and_one_that_ends_at_once(client, run):
    process = Progress(client, run, "worker-0", "worker")
    process.working()
    assert 0 < client.ttl(keys.process(run, "worker-0")) <= progress.EXPIRE_S
    client.delete(keys.process(run, "worker-0"))
    assert read_processes(client, run) == []
    Progress(client, run, "worker-0", "worker").working()
    process.done()
    assert read_processes(client, run) == [] and not client.exists(keys.processes(run))


def test_a_process_in_a_long_update_stays_shown_until_its_next_word(client, run):
    trainer = Progress(client, run, "trainer", "trainer")
    trainer.waiting("buffer 3")
    trainer.busy_for(3600, version=3)
    assert client.ttl(keys.process(run, "trainer")) > 3000
    assert read_processes(client, run)[0]["waiting"] == "" and read_processes(client, run)[0]["version"] == 3
    time.sleep(progress.CHANGE_S)
    trainer.waiting("buffer 4")
    assert client.ttl(keys.process(run, "trainer")) <= progress.EXPIRE_S


def test_the_index_of_processes_forgets_the_dead(client, run):
    client.zadd(keys.processes(run), {"dead": 1})
    Progress(client, run, "alive", "worker").working()
    assert client.zrange(keys.processes(run), 0, -1) == [b"alive"]


def test_metrics_are_a_stream_that_is_read_from_where_one_was(client, run):
    for version in (1, 2):
        record_metrics(client, run, {"version": version, "staleness": {"0": 3}})
    first, last = read_metrics(client, run)
    assert first == [{"version": 1, "staleness": {"0": 3}}, {"version": 2, "staleness": {"0": 3}}]
    assert read_metrics(client, run, last) == ([], last)


def test_the_trainers_time_is_shown_as_shares_of_the_newest_updates(client, run):
    assert read_shares(client, run) == {}
    for seconds, step, ready in ((100.0, 1.0, 99.0), (6.0, 4.0, 1.0), (4.0, 4.0, 0.0)):
        line = {"seconds": seconds, "step_seconds": step, "wait_seconds": {"ready": ready, "fetch": 0.0}}
        record_metrics(client, run, line)
    assert read_shares(client, run, updates=2) == {"update": 0.8, "ready": 0.1, "fetch": 0.0}
