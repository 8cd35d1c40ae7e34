"""What doctor finds about a Redis and about this machine, each with what to do about it."""

import os
import socket
import stat
import threading
from functools import partial

import pytest
import redis

from pipeline import doctor_disk, doctor_machine, doctor_redis, keys, ports, programs, tensor_file
from pipeline.config_file import load
from pipeline.coordinator import Coordinator
from pipeline.doctor import _finding, _sglang, examine
from pipeline.redis_client import connect
from pipeline.redis_server import RedisServer, find_binary
from tests.fixtures_users import password, server_of_users

DEMO = "pipeline/recipes/demo.toml"


@pytest.fixture
def server(tmp_path):
    """A server of its own, whose settings a test may change."""
    server = RedisServer.start(tmp_path / "redis")
    with redis.Redis.from_url(server.url) as client:
        server.client = client
        yield server
    server.stop()


def of_redis(url, config=None):
    return {name: check() for name, check in doctor_redis.checks(url, config)}


def bad(findings):
    return {name: (found, fix) for name, (ok, found, fix) in findings.items() if not ok}


def test_the_redis_that_a_run_starts_itself_is_as_it_should_be(server):
    found = of_redis(server.url, load(DEMO))
    assert not bad(found)
    assert found["redis access"][1] == "only this machine is let in without a password"
    assert found["redis schema"][1] == "no run 'demo' yet"


def test_the_redis_of_the_stack_is_as_it_should_be_whoever_asks(tmp_path, monkeypatch):
    with server_of_users(find_binary(), tmp_path / "data") as one:
        for role in ("viewer", "worker", "trainer", "coordinator"):
            found = of_redis(f"redis://{role}:{password(role)}@127.0.0.1:{one.port}/0", load(DEMO))
            assert not bad(found)
            assert found["redis access"][1] == "nobody is let in without a password"
            assert not [text for finding in found.values() for text in finding[1:] if password(role) in text]


@pytest.mark.parametrize(
    ("setting", "value", "check", "found", "fix"),
    [
        ("maxmemory-policy", "allkeys-lru", "redis eviction", "forgets entries by itself", "noeviction"),
        ("appendonly", "no", "redis durability", "a restart forgets the run", "CONFIG SET appendonly yes"),
        ("maxmemory", "100mb", "redis memory", "maxmemory 0.1 GiB, buffers.byte_budget", "lower buffers.byte_budget"),
    ],
)
def test_a_setting_that_a_ledger_cannot_live_with_is_found_with_its_fix(server, setting, value, check, found, fix):
    server.client.config_set(setting, value)
    ((name, (said, todo)),) = bad(of_redis(server.url, load(DEMO))).items()
    assert name == check and found in said and fix in todo


def test_a_redis_that_lets_in_whoever_reaches_it_is_found(server):
    server.client.config_set("bind", "0.0.0.0")
    assert not bad(of_redis(server.url)), "protected mode keeps others out"
    server.client.config_set("protected-mode", "no")
    said, todo = bad(of_redis(server.url))["redis access"]
    assert "listens on 0.0.0.0, and lets in whoever comes without a password" in said
    assert "docker/users.acl" in todo and "protected-mode yes" in todo
    elsewhere = server.url.replace("127.0.0.1", "0.0.0.0")  # an address that is not this machine's alone
    assert "whoever reaches it is let in" in bad(of_redis(elsewhere))["redis access"][0]


@pytest.mark.parametrize("query", ["", "?username=worker&client_name=me"])
def test_a_redis_that_lets_in_whoever_comes_is_found_by_whom_it_knows_too(server, monkeypatch, query):
    server.client.execute_command("ACL", "SETUSER", "worker", "on", ">s3cret", "~*", "&*", "+@all")
    server.client.config_set("bind", "0.0.0.0")
    server.client.config_set("protected-mode", "no")
    monkeypatch.setenv("REDIS_PASSWORD", "s3cret")
    url = server.url.replace("//", "//worker@" if not query else "//") + query
    assert "lets in whoever comes without a password" in bad(of_redis(url))["redis access"][0]
    server.client.execute_command("ACL", "SETUSER", "default", "-@all")  # in, but not allowed to PING
    assert "lets in whoever comes" not in of_redis(url)["redis access"][1]
    assert of_redis(url)["redis access"][1] == "only this machine is let in without a password"
    with connect(url) as client:
        client.execute_command("ACL", "SETUSER", "default", "off")
    assert of_redis(url)["redis access"][:2] == (True, "nobody is let in without a password")


def answering(reply):
    """The address of one that answers every visit with `reply`, or, of None, with nothing."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        kept = []
        while True:
            try:
                visitor, _ = server.accept()
            except OSError:
                return
            kept.append(visitor)
            if reply is not None:
                visitor.recv(4096)
                visitor.sendall(reply)
                visitor.close()

    threading.Thread(target=serve, daemon=True).start()
    return server, f"redis://worker@127.0.0.1:{server.getsockname()[1]}/0"


@pytest.mark.parametrize(
    ("reply", "ok", "found"),
    [
        (b"-DENIED Redis is running in protected mode\r\n", True, "nobody is let in"),
        (b"-NOAUTH Authentication required.\r\n", True, "nobody is let in"),
        (b"-ERR max number of clients reached\r\n", False, "was not answered (max number of clients reached)"),
        (None, False, "was not answered (Timeout"),
    ],
)
def test_only_a_refusal_is_taken_for_one(monkeypatch, reply, ok, found):
    if reply is None:
        monkeypatch.setattr(doctor_redis, "VISIT_S", 0.2)
    server, url = answering(reply)
    with server:
        answer = doctor_redis._access(url)
    assert answer[0] == ok and found in answer[1]


def test_clocks_that_differ_are_found():
    assert doctor_redis._clock(1.5)[0]
    ok, found, fix = doctor_redis._clock(-30.04)
    assert not ok and found == "its clock is 30.0 s behind this machine's" and "set-ntp" in fix


def test_a_run_of_another_headrace_or_with_other_settings_is_found(server):
    config = load(DEMO)
    Coordinator.create(server.client, "demo", config.ledger_settings)
    assert not bad(of_redis(server.url, config))
    said, todo = bad(of_redis(server.url, load(DEMO, ["run.seed=77"])))["redis schema"]
    assert "has settings" in said and "run.toml" in todo
    server.client.hset(keys.run("demo"), "schema", keys.SCHEMA - 1)
    said, todo = bad(of_redis(server.url, config))["redis schema"]
    assert "another headrace" in said and "choose another name" in todo


def test_a_redis_that_does_not_answer_is_one_finding(monkeypatch):
    monkeypatch.setenv("REDIS_URL", "redis://worker:hidden-one@127.0.0.1:1/0")
    monkeypatch.setattr("pipeline.doctor_redis.connect", partial(connect, timeout_s=0))
    (found,) = [finding for finding in examine() if finding["check"].startswith("redis")]
    assert not found["ok"] and "no Redis answers" in found["found"] and "start it" in found["fix"]
    assert "hidden-one" not in str(found)


# -- the machine


def test_ports_that_the_run_names_must_be_free(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        ok, found, fix = doctor_machine.settings_ports(load(DEMO, [f"run.folder={tmp_path}", f"engines.port={taken}"]))
        assert not ok and str(taken) in found and "0 for free ones" in fix
    free = ports.free()[0]
    assert doctor_machine.settings_ports(load(DEMO, [f"run.folder={tmp_path}", f"engines.port={free}"]))[0]
    assert doctor_machine.settings_ports(load(DEMO, [f"run.folder={tmp_path}"]))[:2] == (True, "free ones are taken")


def program(folder, name, script):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(folder)


GPUS = ['engines.device="cuda"', "engines.gpus=[0]", "trainer.gpus=[1]"]


def test_gpus_that_the_run_names_must_be_there(tmp_path, monkeypatch):
    config = load(DEMO, GPUS)
    monkeypatch.setenv("PATH", str(tmp_path))
    ok, found, fix = doctor_machine.gpus(config)
    assert not ok and found == "no nvidia-smi; the run wants GPUs [0, 1]" and "driver" in fix
    assert doctor_machine.gpus(None)[0] and doctor_machine.gpus(load(DEMO))[0]
    monkeypatch.setenv("PATH", program(tmp_path / "one", "nvidia-smi", "echo '0, NVIDIA H100, 550.54'") + ":/bin")
    ok, found, _ = doctor_machine.gpus(config)
    assert not ok and found == "0, NVIDIA H100, 550.54; the run wants also [1]"
    two = "echo '0, NVIDIA H100, 550.54'; echo '1, NVIDIA H100, 550.54'"
    monkeypatch.setenv("PATH", program(tmp_path / "two", "nvidia-smi", two) + ":/bin")
    assert doctor_machine.gpus(config)[0]
    broken = "echo 'NVIDIA-SMI has failed'; exit 9"
    monkeypatch.setenv("PATH", program(tmp_path / "broken", "nvidia-smi", broken) + ":/bin")
    assert doctor_machine.gpus(config)[:2] == (False, "nvidia-smi fails: NVIDIA-SMI has failed")


def test_pytorch_must_see_the_gpus_that_ranks_are_to_have(tmp_path, monkeypatch):
    config = load(DEMO, GPUS)
    for said, ok, found in (
        ("2 13.0", True, "2 GPUs, CUDA 13.0"),
        ("1 12.8", False, "1 GPUs, CUDA 12.8; trainer.gpus = [1]"),
        ("0 none", False, "0 GPUs, a build without CUDA; trainer.gpus = [1]"),
    ):
        program(tmp_path, "python", f"echo {said}")
        monkeypatch.setattr(programs, "PYTHON", [str(tmp_path / "python")])
        answer = doctor_machine.torch_gpus(config)
        assert answer[0] == ok and answer[1].startswith("PyTorch sees ") and found in answer[1]
        assert "driver" in answer[2] and "CUDA" in answer[2]
    program(tmp_path, "python", "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1")
    assert doctor_machine.torch_gpus(config)[:2] == (False, "ModuleNotFoundError: No module named 'torch'")


@pytest.mark.parametrize("name", ["nvidia-smi", "docker"])
def test_a_program_that_hangs_is_a_finding(tmp_path, monkeypatch, name):
    monkeypatch.setenv("PATH", program(tmp_path / "bin", name, "exec sleep 60") + ":/bin:/usr/bin")
    monkeypatch.setattr(doctor_machine, "ASK_S", 0.2)
    check = {"nvidia-smi": lambda: doctor_machine.gpus(None), "docker": doctor_machine.compose}[name]
    found = _finding(name, check)
    assert not found["ok"] and found["found"].startswith(f"`{name} ") and "has not ended within 0.2 s" in found["found"]
    assert found["fix"]


def test_a_program_that_cannot_be_started_is_a_finding(tmp_path, monkeypatch):
    path = tmp_path / "python"
    path.write_text("no program\n")
    path.chmod(0o755)
    found = _finding("sglang", lambda: _sglang(path))
    assert not found["ok"] and "Exec format error" in found["found"] and found["fix"]


@pytest.mark.parametrize(
    ("script", "ok", "found"),
    [
        ("echo 5.6.1", True, "Docker Compose 5.6.1"),
        ("echo v2.23.3-desktop.1", False, "Docker Compose v2.23.3-desktop.1"),
        ("echo \"docker: 'compose' is not a docker command\" >&2; exit 1", True, "docker without Compose"),
        (None, True, "no docker"),
    ],
)
def test_a_compose_that_does_not_know_our_file_is_found(tmp_path, monkeypatch, script, ok, found):
    folder = program(tmp_path, "docker", script) if script else str(tmp_path)
    monkeypatch.setenv("PATH", f"{folder}:/bin" if script else folder)
    answer = doctor_machine.compose()
    assert answer[0] == ok and answer[1].startswith(found)
    assert ok or "2.24 or newer" in answer[2]


def test_several_gpus_want_shared_memory(monkeypatch):
    config = load(DEMO, ['engines.device="cuda"', "engines.gpus=[0]", "trainer.gpus=[1,2]", "trainer.ranks=2"])
    monkeypatch.setattr(doctor_machine, "SHARED_MEMORY_GB", 1e9)
    ok, _, fix = doctor_machine.shared_memory(config)
    assert not ok and "shm_size" in fix
    assert doctor_machine.shared_memory(load(DEMO))[0], "a run without GPUs does without"


def test_the_disk_is_the_one_that_the_run_is_written_to(tmp_path):
    config = load(DEMO, [f"run.folder={tmp_path}/not/yet"])
    assert f"GB free in {tmp_path}/not/yet" in doctor_disk.disk(config)[1]
    assert doctor_disk.disk(None)[1].endswith(f"free in {os.getcwd()}")


def test_the_disk_must_have_room_for_the_checkpoints_and_weights_of_the_model(tmp_path):
    """Of eight times 10⁹ parameters, which none of the files has."""
    entries = [tensor_file.Entry(f"layers.{i}", "BF16", (1_000_000, 1000)) for i in range(8)]
    (model := tmp_path / "model").mkdir()
    (model / "model.safetensors").write_bytes(tensor_file.header(entries))
    settings = [f"run.folder={tmp_path}", f'model={{path="{model}", dtype="bfloat16"}}']
    config = load(DEMO, settings)
    assert doctor_disk.wanted_bytes(config) == 8_000_000_000 * (3 * 12 + 6 * 2)
    assert doctor_disk.wanted_bytes(load(DEMO, [*settings, "loss.kl=0.1"])) == 8_000_000_000 * (3 * 16 + 6 * 2)
    kept = load(DEMO, [*settings, "trainer.checkpoints_kept=10000"])
    ok, found, fix = doctor_disk.disk(kept)
    assert not ok and "checkpoints and weights will take 960192 GB, and have 0 GB" in found
    assert "wants 960192 GB" in fix and "trainer.checkpoints_kept" in fix
    (kept.folder / "checkpoints" / "10").mkdir(parents=True)
    with (kept.folder / "checkpoints" / "10" / "__0_0.distcp").open("wb") as file:
        file.truncate(1_000_000_000_000)
    assert "and have 1000 GB" in doctor_disk.disk(kept)[1]
