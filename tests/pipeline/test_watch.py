import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
import redis

from pipeline import evals, jsonl, keys, reports, transfer, watch
from pipeline.config import Config
from pipeline.config_file import to_toml
from pipeline.config_sections import Metrics
from pipeline.coordinator import Coordinator
from pipeline.data import training_problems
from pipeline.engines import Engine
from pipeline.errors import ConfigError
from pipeline.progress import read_processes
from pipeline.redis_client import RedisFailed, connect
from pipeline.redis_server import RedisServer
from pipeline.watch import Watch, first_prompts
from pipeline.weights import read_manifest, write_manifest


@pytest.fixture
def config(tmp_path, run):
    """Four problems, batches of one, an evaluation at version 0 and at every second one."""
    for name, numbers in (("train", range(4)), ("held_out", range(10, 12))):
        problems = [json.dumps({"question": f"{n} + 1 = ?", "answer": str(n + 1)}) for n in numbers]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(problems))
    return Config.model_validate(
        {
            "run": {"name": run, "folder": tmp_path, "total_steps": 100},
            "model": {"path": tmp_path},
            "data": {"path": tmp_path / "train.jsonl"},
            "eval": {"data": {"path": tmp_path / "held_out.jsonl"}, "every": 2},
            "buffers": {"batch_size": 1, "max_staleness": 1, "lease_s": 0.5},
        }
    )


@pytest.fixture
def publish(config):
    """publish(version) -> path and digest of weights that lie in the run's folder."""

    def publish(version):
        path = f"weights/{version}" if version == 0 else f"weights/{version}-a"
        folder = config.folder / path
        if not folder.exists():
            folder.mkdir(parents=True)
            write_manifest(folder, version, range(32), [-1.0 - version] * 31, "float32")
        return path, read_manifest(folder).digest

    return publish


@pytest.fixture
def start():
    """start(config, client, urls) -> Watch that runs in a thread until the test ends, or .stop() is called."""
    stops = []

    def start(config, client, urls):
        watch, event, failure = Watch(config, client, urls), threading.Event(), []

        def work():
            try:
                watch.run(event)
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=work)

        def stop():
            event.set()
            thread.join(10)
            assert not thread.is_alive()
            if failure:
                raise failure.pop()

        thread.start()
        stops.append(stop)
        watch.stop, watch.thread = stop, thread
        return watch

    yield start
    for stop in stops:
        stop()


def until(condition, timeout_s=8):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


def ready_at(ledger):
    return [engine.version for engine in ledger.engines() if engine.state == "ready"]


def evaluate(client, run, version):
    until(lambda: evals.claim(client, run, "worker-0") == version)
    evals.finish(client, run, version, "worker-0", success=0.5, stderr=0.1, trajectories=8, seconds=1.0)


def test_the_first_evidence_of_a_prompt_is_its_offline_outcomes(config):
    config.folder.mkdir()
    ids = [problem["id"] for problem in training_problems(config)]
    (config.folder / "values.jsonl").write_text(json.dumps({"id": ids[0], "outcomes": [1.0] * 8}) + "\n")
    first, second, *_ = first_prompts(config)
    assert (first["alpha"], first["beta"]) == pytest.approx((8 * 8.5 / 9, 8 * 0.5 / 9))
    assert (second["alpha"], second["beta"]) == (4, 4)
    assert first["id"] == ids[0] and json.loads(first["payload"])["question"] == "0 + 1 = ?"


def test_version_0_is_served_before_a_trainer_is_there(config, client, run, start, publish, scripted_engine):
    publish(0)
    engine = scripted_engine()
    start(config, client, [engine.url])
    ledger = Coordinator(client, run)
    until(lambda: ready_at(ledger) == [0])
    reserved = ledger.reserve("worker-0", "engine-0")
    assert reserved.version == 0 and json.loads(reserved.payload)["answer"]


def test_the_coordinator_names_the_engine_that_it_waits_for(config, client, run, start, publish, scripted_engine):
    publish(0)
    engine = scripted_engine()
    engine.free.clear()  # its load waits
    start(config, client, [engine.url])
    until(lambda: [p["waiting"] for p in read_processes(client, run)] == ["engine-0 to serve version 0"])
    engine.free.set()
    until(lambda: [p["waiting"] for p in read_processes(client, run)] == ["the evaluation of version 0"])


def test_a_published_version_reaches_every_engine_and_old_weights_go(
    config, client, run, start, publish, scripted_engine, tmp_path
):
    publish(0)
    engines = [scripted_engine(), scripted_engine()]
    start(config, client, [engine.url for engine in engines])
    ledger = Coordinator(client, run)
    until(lambda: ready_at(ledger) == [0, 0])
    evaluate(client, run, 0)
    for version in (5, 6, 7):
        ledger.join(f"trainer-{version}", version)  # a trainer with a checkpoint of its own: the ledger follows it
        ledger.publish(f"trainer-{version}", version, *publish(version))
        until(lambda v=version: ready_at(ledger) == [v, v])
        if version < 7:
            evaluate(client, run, version)
    until(lambda: {p.name for p in (config.folder / "weights").iterdir()} == {"0", "6-a", "7-a"})
    until(lambda: len((config.folder / "evals.jsonl").read_text().splitlines()) == 3)
    kinds = [json.loads(line)["kind"] for line in (config.folder / "events.jsonl").read_text().splitlines()]
    assert kinds[0] == "created" and "published" in kinds


def test_engines_stay_at_a_version_while_it_is_evaluated(config, client, run, start, publish, scripted_engine):
    publish(0)
    start(config, client, [scripted_engine().url])
    ledger = Coordinator(client, run)
    until(lambda: evals.claim(client, run, "worker-0") == 0)
    ledger.join("trainer", 5)
    ledger.publish("trainer", 5, *publish(5))

    def said():
        ledger.renew("worker-0", [])
        return any("evaluation of version 0" in p["waiting"] for p in read_processes(client, run))

    until(said)
    for _ in range(10):
        ledger.renew("worker-0", [])
        time.sleep(0.1)
    assert ready_at(ledger) == [0]
    evals.finish(client, run, 0, "worker-0", success=0.5, stderr=0.1, trajectories=8, seconds=1.0)
    until(lambda: ready_at(ledger) == [5])


def test_weights_that_an_engine_serves_for_an_evaluation_stay_and_those_it_skips_go(
    config, client, run, start, publish, scripted_engine
):
    publish(0)
    engine = scripted_engine()
    start(config, client, [engine.url])
    ledger = Coordinator(client, run)
    evaluate(client, run, 0)
    for version in (5, 6, 7, 8, 9):
        ledger.join(f"trainer-{version}", version)  # a trainer with a checkpoint of its own: the ledger follows it
        ledger.publish(f"trainer-{version}", version, *publish(version))
        if version == 5:
            until(lambda: evals.claim(client, run, "worker-0") == 5)

    def kept():
        ledger.renew("worker-0", [])
        return {path.name for path in (config.folder / "weights").iterdir()}

    until(lambda: kept() == {"0", "5-a", "8-a", "9-a"})
    evals.finish(client, run, 5, "worker-0", success=0.5, stderr=0.1, trajectories=8, seconds=1.0)
    until(lambda: ready_at(ledger) == [9])
    until(lambda: kept() == {"0", "8-a", "9-a"})
    assert engine.loads == [0, 5, 9]


def test_entries_of_a_worker_that_died_are_released(config, client, run, start, publish, scripted_engine):
    publish(0)
    start(config, client, [scripted_engine().url])
    ledger = Coordinator(client, run)
    until(lambda: ready_at(ledger) == [0])
    reserved = ledger.reserve("worker-0", "engine-0")
    until(lambda: reserved.prompt in {p["id"] for p in ledger.prompts() if p["state"] == "idle"})


def test_leases_are_reaped_while_an_engine_hangs_in_a_load(config, client, run, start, publish, scripted_engine):
    publish(0)
    engine = scripted_engine()
    start(config, client, [engine.url])
    ledger = Coordinator(client, run)
    until(lambda: ready_at(ledger) == [0])
    evaluate(client, run, 0)
    engine.faults["/update_weights_from_disk"] = 5
    engine.restart()
    ledger.reserve("worker-0", "engine-0")
    until(lambda: ready_at(ledger) == [])
    until(lambda: not ledger.workers(), timeout_s=3)


def test_an_engine_that_dies_is_marked_within_seconds_and_another_one_joins(
    config, client, run, start, publish, scripted_engine
):
    publish(0)
    dying, other = scripted_engine(), scripted_engine()
    start(config, client, [dying.url])
    ledger = Coordinator(client, run)
    until(lambda: ready_at(ledger) == [0])
    dying.faults["/generate"] = dying.faults["/continue_generation"] = (500, {"error": "CUDA error"})
    until(lambda: ready_at(ledger) == [], timeout_s=5)
    (engine,) = ledger.status()["engines"]
    assert (engine["name"], engine["state"]) == ("engine-0", "failed") and "CUDA error" in engine["reason"]
    name = reports.add_engine(ledger, other.url)["engine"]
    until(lambda: [e.name for e in ledger.engines() if e.state == "ready"] == [name], timeout_s=3)


def test_the_runs_policy_is_what_its_engines_do(config, client, run, start, publish, scripted_engine):
    config = config.model_copy(update={"publish": config.publish.model_copy(update={"policy": "retract"})})
    publish(0)
    engine = scripted_engine()
    start(config, client, [engine.url])
    until(lambda: ready_at(Coordinator(client, run)) == [0])
    assert "pause_generation" in engine.calls


def test_weights_that_no_trainer_broadcasts_come_from_disk(
    config, client, run, start, publish, scripted_engine, monkeypatch
):
    monkeypatch.setattr(transfer, "TAKE_S", 0.2)
    config = config.model_copy(update={"publish": config.publish.model_copy(update={"transport": "distributed"})})
    publish(0)
    engine = scripted_engine()
    start(config, client, [engine.url])
    ledger = Coordinator(client, run)
    evaluate(client, run, 0)
    ledger.join("trainer", 5)
    ledger.publish("trainer", 5, *publish(5))
    until(lambda: ready_at(ledger) == [5])
    reasons = [fields.get(b"reason", b"").decode() for _, fields in client.xrange(keys.events(run))]
    assert "version 5, from disk: no trainer took it within 0.2 s" in reasons and engine.loads == [0, 5]
    evaluate(client, run, 5)
    ledger.join("trainer-100", 100)
    ledger.publish("trainer-100", 100, *publish(100))
    until(lambda: ready_at(ledger) == [100])
    reasons = [fields.get(b"reason", b"").decode() for _, fields in client.xrange(keys.events(run))]
    assert "version 100, from disk: the trainer ends with its last update" in reasons


def test_two_coordinators_at_once_and_one_after_the_other_do_no_harm(
    config, client, run, start, publish, scripted_engine
):
    publish(0)
    engine = scripted_engine()
    first, second = (start(config, client, [engine.url]) for _ in range(2))
    ledger = Coordinator(client, run)
    evaluate(client, run, 0)
    first.stop()
    until(lambda: ready_at(ledger) == [0])
    second.stop()
    assert read_processes(client, run) == []
    third = start(config, client, [engine.url])
    until(lambda: str(third.fleet) == "engine-0 v0")
    assert ready_at(ledger) == [0] and len(ledger.prompts()) == 4
    until((config.folder / "evals.jsonl").exists)
    assert len((config.folder / "evals.jsonl").read_text().splitlines()) == 1


def test_an_evaluation_that_ended_just_before_the_end_is_in_the_file(
    config, client, run, start, publish, scripted_engine, monkeypatch
):
    monkeypatch.setattr(watch, "PASS_S", 60)  # no pass comes in between
    publish(0)
    running = start(config, client, [scripted_engine().url])
    evaluate(client, run, 0)
    running.stop()
    assert [line["version"] for line in jsonl.read(config.folder / "evals.jsonl")] == [0]
    assert "engine" in {line["kind"] for line in jsonl.read(config.folder / "events.jsonl")}


def test_other_settings_under_the_same_name_are_refused(config, client):
    Watch(config, client, ["http://127.0.0.1:1"])
    changed = config.model_copy(update={"buffers": config.buffers.model_copy(update={"max_staleness": 2})})
    with pytest.raises(ConfigError, match=r"max_staleness: 1 → 2"):
        Watch(changed, client, ["http://127.0.0.1:1"])


def test_a_redis_that_is_restarted_is_waited_for_and_one_that_is_gone_ends_in_one_message(
    config, run, start, publish, scripted_engine, tmp_path, monkeypatch
):
    monkeypatch.setattr(watch, "REDIS_AWAY_S", 1)
    publish(0)
    server = RedisServer.start(tmp_path / "redis")
    engine = scripted_engine()
    with connect(server.url) as client:
        client.get_retry().update_retries(0)
        running = start(config, client, [engine.url])
        ledger = Coordinator(client, run)
        until(lambda: ready_at(ledger) == [0])
        server.process.kill()
        server.process.wait()
        server = RedisServer.start(tmp_path / "redis", server.port)
        engine.restart()
        until(lambda: engine.loads == [0, 0])
        server.stop()
        running.thread.join(20)
        with pytest.raises(RedisFailed, match="once it is back, start this again"):
            running.stop()


def test_a_redis_that_lost_the_run_gets_it_again(config, client, run, start, publish, scripted_engine):
    publish(0)
    start(config, client, [scripted_engine().url])
    ledger = Coordinator(client, run)
    until(lambda: ready_at(ledger) == [0])
    client.delete(*client.scan_iter(f"hr:{{{run}}}*", count=1000))
    until(lambda: client.exists(f"hr:{{{run}}}") and len(Coordinator(client, run).prompts()) == 4)
    until(lambda: ready_at(Coordinator(client, run)) == [0])


def test_the_process_serves_its_metrics_and_sigterm_ends_it_cleanly(config, redis_url, run, publish, scripted_engine):
    publish(0)
    path, targets = config.folder / "run.toml", config.run.folder / ".prometheus"
    path.write_text(to_toml(config.model_copy(update={"metrics": Metrics(port=0)})))
    command = [sys.executable, "-m", "pipeline.cli", "coordinator", str(path), "--engine", scripted_engine().url]
    environment = os.environ | {"REDIS_URL": redis_url}
    with (
        redis.Redis.from_url(redis_url) as client,
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process,
    ):
        until(lambda: client.exists(f"hr:{{{run}}}") and ready_at(Coordinator(client, run)) == [0])
        ((found,),) = (json.loads(path.read_text()) for path in targets.glob("*.json"))
        with urllib.request.urlopen(f"http://{found['targets'][0]}/metrics", timeout=10) as reply:
            assert f'headrace_engine_version{{engine="engine-0",run="{run}"}} 0.0' in reply.read().decode()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
    assert (
        process.returncode == 0
        and "serves version 0" in errors
        and "engine=engine-0" in errors
        and "Traceback" not in errors
    )
    assert not list(targets.iterdir())


@pytest.mark.sglang
def test_the_real_engine_follows_what_is_published(config, client, run, start, published, sglang):
    (config.folder).mkdir(exist_ok=True)
    (config.folder / "weights").symlink_to(published / "weights")
    start(config, client, [sglang.url])
    ledger = Coordinator(client, run)
    for version in (1, 2):
        digest = read_manifest(published / f"weights/{version}-a").digest
        ledger.join(f"trainer-{version}", version)
        ledger.publish(f"trainer-{version}", version, f"weights/{version}-a", digest)
        until(lambda v=version: ready_at(ledger) == [v], timeout_s=30)
        if version == 1:
            evaluate(client, run, 1)
    Engine(sglang.url).verify(read_manifest(published / "weights/2-a"), run)
