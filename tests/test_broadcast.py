"""The trainer's broadcast into a real SGLang server, over gloo; whatever fails, the engine is free again soon."""

import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import redis
import torch
import torch.distributed as dist

from pipeline.config import Config
from pipeline.config_file import to_toml
from pipeline.coordinator import Coordinator
from pipeline.engine_fleet import EngineFleet
from pipeline.engine_keeper import Publication
from pipeline.engines import Engine, EngineFailed
from pipeline.ledger_types import Weights
from pipeline.transfer import Transfer, TransferFailed, ask
from pipeline.weights import Label
from tests.fixtures_sglang import generate, running, slow_down
from tests.waiting import wait_for
from trainer import broadcast, model
from trainer.broadcast import broadcasting, ranks_of, send
from trainer.publish import probe_tokens, write_weights
from trainer.ranks import ALONE

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def config(tiny_model, tmp_path_factory):
    return Config.model_validate(
        {
            "run": {"name": "sent", "folder": tmp_path_factory.mktemp("sent")},
            "model": {"path": tiny_model},
            "data": {"tasks": {"chain_sum": {}}},
            "publish": {"transport": "distributed"},
        }
    )


@pytest.fixture(scope="module")
def published(config):
    """Manifests of versions 1, 2 and 3, in the run's folder; between the last two only a layer has changed."""
    policy, probe = model.load(config.model_path), probe_tokens(config.model_path, "12 * 7 = ?")
    manifests = {}
    for version in (1, 2, 3):
        folder = config.folder / f"weights/{version}"
        manifests[version] = write_weights(policy, folder, version, config.model_path, "float32", probe).manifest
        with torch.no_grad():
            for parameter in (policy if version == 1 else policy.model.layers[1]).parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(version)))
    (config.folder / "run.toml").write_text(to_toml(config))
    return manifests


@pytest.fixture
def engine(sglang, published, config):
    """It serves version 1."""
    engine = Engine(sglang.url)
    engine.bring(config.folder / "weights/1", config.run.name, timeout_s=60)
    yield engine
    slow_down(sglang.url, None)
    engine.bring(config.folder / "weights/1", config.run.name, timeout_s=60)
    engine.load(sglang.model_path, "base", timeout_s=60)


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        yield client


def sent(client, config, published, engine, path="weights/2", timeout_s=30):
    """Ask until somebody takes it: the process that sends takes seconds to start."""
    label = str(published[2].label(config.run.name))
    end = time.monotonic() + 200
    while True:
        try:
            return ask(client, config.run.name, engine.url, path, label, timeout_s)
        except TransferFailed as error:
            if "no trainer" not in str(error) or time.monotonic() > end:
                raise


def test_a_publication_reaches_a_serving_engine_without_the_disk_and_is_proved(
    engine, config, published, client, redis_url, monkeypatch
):
    weights = {v: Weights(v, f"weights/{v}", published[v].digest, v, 0) for v in published}
    run, loads = config.run.name, []
    monkeypatch.setattr(Engine, "_load", lambda self, folder, *rest: loads.append(folder.name))
    ledger = Coordinator.create(client, run, {"batch_size": 2})

    def by_broadcast(url, path, label):
        sent(client, config, published, engine, path)

    fleet = EngineFleet(ledger, [engine.url], Publication(config.folder, 60, policy="retract", transfer=by_broadcast))
    wait_for(lambda: fleet.follow(weights[1]))
    replies = []
    thread = threading.Thread(target=lambda: replies.append(generate(engine.url, [5, 6, 7], 40)))
    with broadcasting(config, redis_url, ALONE):
        wait_for(lambda: client.info("clients")["blocked_clients"], 200)  # the sender is up, before a request waits
        slow_down(engine.url, 0.05)
        thread.start()
        wait_for(lambda: running(engine.url))
        wait_for(lambda: fleet.follow(weights[2]), 60)
    slow_down(engine.url, None)
    thread.join()
    monkeypatch.undo()
    assert loads == []
    engine.verify(published[2], run)
    spans = replies[0]["meta_info"]["weight_versions"]
    assert [Label.parse(span["version"]).version for span in spans] == [1, 2] and len(replies[0]["output_ids"]) == 40


@pytest.fixture
def told(monkeypatch):
    """What SGLang is told of each bucket."""
    requests, call = [], Engine.call

    def noted(self, method, path, request=None, timeout_s=30):
        if path == "/update_weights_from_distributed":
            requests.append(request)
        return call(self, method, path, request, timeout_s)

    monkeypatch.setattr(Engine, "call", noted)
    return requests


def test_many_tensors_go_in_one_bucket_and_with_delta_only_those_that_have_changed(engine, config, published, told):
    run, names = config.run.name, []
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        for version in (2, 3):
            told.clear()
            asked = Transfer("", engine.url, f"weights/{version}", str(published[version].label(run)), 60)
            send(asked, config.folder, ALONE.device, bytes_=1 << 20, delta=True)
            engine.verify(published[version], run)
            names.append([name for request in told for name in request["names"]])
            *partly, whole = [Label.parse(request["weight_version"]) for request in told]
            assert whole == published[version].label(run) and not any(partly)
            assert len(told) < len(names[-1]) / 2
    finally:
        dist.destroy_process_group()
    changed = {name for name, mark in published[3].tensors.items() if published[2].tensors[name] != mark}
    assert sorted(names[0]) == sorted(published[2].tensors) and set(names[1]) == changed
    assert 0 < len(changed) == sum("layers.1." in name for name in published[3].tensors)


def test_whatever_goes_wrong_is_said_and_the_next_transfer_works(engine, config, published, client, redis_url):
    engine.call("POST", "/begin_weight_update", {})  # left open by a trainer that was killed
    with broadcasting(config, redis_url, ALONE):
        with pytest.raises(TransferFailed, match="safetensors, found none"):
            sent(client, config, published, engine, "weights/9")
        sent(client, config, published, engine)
    engine.verify(published[2], config.run.name)


def test_an_engine_that_waits_for_what_never_comes_is_free_when_the_time_is_over(
    engine, config, published, client, redis_url
):
    nowhere = replace(ALONE, device=torch.device("meta"))  # torch takes such a tensor, and sends nothing
    with broadcasting(config, redis_url, nowhere), pytest.raises(TransferFailed, match="not done within 4 s"):
        sent(client, config, published, engine, timeout_s=4)
    engine.bring(config.folder / "weights/2", config.run.name, timeout_s=10)


def test_a_server_that_does_not_say_how_many_ranks_it_has_is_told_what_was_expected(engine, monkeypatch):
    assert ranks_of(engine) == 1
    monkeypatch.setattr(Engine, "call", lambda self, *request: {"tp": 1})
    with pytest.raises(EngineFailed, match=r"/server_info: expected tp_size, found None: is it SGLang\?"):
        ranks_of(engine)


def test_a_sender_that_does_not_hear_sigterm_is_killed(config, published, redis_url, monkeypatch):
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    monkeypatch.setattr(broadcast, "END_S", 0.2)
    with broadcasting(config, redis_url, ALONE):
        wait_for(lambda: started)
        started[0].send_signal(signal.SIGSTOP)
        # of two signals that wait for it, a process would take SIGTERM first
        wait_for(lambda: Path(f"/proc/{started[0].pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    assert started[0].returncode == -signal.SIGKILL
