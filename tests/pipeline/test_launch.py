"""`headrace up` against what goes wrong, with real processes; the whole way to the end is in test_end_to_end.py."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.config_file import load, to_toml
from pipeline.coordinator import Coordinator
from pipeline.errors import ConfigError
from pipeline.launch import Launch, up
from pipeline.run_folder import holder_of, locked
from pipeline.supervisor import Program
from tests.waiting import wait_for

RUN = """
[run]
name = "small"
[model]
path = "model"
[data]
tasks.chain_sum = { min_terms = 2 }
[advantage]
offline_rollouts = 0
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, sglang_stand_in):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDIS_URL", raising=False)
    Path("small.toml").write_text(RUN)
    model_folder(Path("model"))
    return tmp_path


def model_folder(path: Path) -> None:
    """The smallest folder that looks like a model from outside."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))


def of_more_than_text(model: Path) -> None:
    shape = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": {"max_position_embeddings": 4096}}
    (model / "config.json").write_text(json.dumps(shape))


def headrace(*arguments, **options):
    argv = [sys.executable, "-m", "pipeline.cli", *map(str, arguments)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def failed(*arguments) -> tuple[int, str]:
    process = headrace(*arguments)
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    return process.returncode, err


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda model: model.rename("elsewhere"), "model.path = model: no such folder"),
        (lambda model: (model / "config.json").unlink(), "model/config.json: missing"),
        (lambda model: (model / "config.json").write_text("{"), "model/config.json: not valid JSON"),
        (lambda model: (model / "tokenizer.json").unlink(), "model/tokenizer.json: missing"),
        (lambda model: (model / "model.safetensors").unlink(), "model: no *.safetensors"),
        (lambda model: (model / "model.safetensors").write_text("version https://git-lfs"), "not a safetensors file"),
        (lambda model: os.truncate(model / "model.safetensors", 70), "the copy was cut short"),
        (lambda model: (model / "config.json").write_text('{"max_position_embeddings": 512}'), "takes at most 512"),
        (of_more_than_text, "model.path = model: Qwen3_5ForConditionalGeneration is more than a text model"),
    ],
)
@pytest.mark.parametrize("command", ["up", "cold-start"])
def test_a_missing_or_broken_model_folder_is_one_clear_message(command, damage, said):
    damage(Path("model"))
    code, err = failed(command, "small.toml")
    assert code == 2
    assert said in err
    assert not Path("runs").exists(), "nothing is written before the checks have passed"


def test_a_data_set_of_the_hub_is_fetched_before_a_process_starts_that_may_not(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, err = failed("cold-start", "small.toml", "data.path=hf:no-such/set", "data.tasks={}")
    assert code == 2 and "the first time it needs the network, which HF_HUB_OFFLINE forbids here" in err
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", ["up", "cold-start", "values"])
def test_a_missing_file_of_an_environment_is_one_clear_message(command):
    code, err = failed(command, "small.toml", "environment.name=mine.py:Mine", "advantage.offline_rollouts=2")
    assert code == 2 and "environment.name = 'mine.py:Mine': no file mine.py in " in err
    assert not Path("runs").exists()


def test_a_missing_teacher_is_named_as_the_teacher():
    code, err = failed("cold-start", "small.toml", "cold_start.teacher=big")
    assert code == 2 and "cold_start.teacher = big: no such folder" in err


def test_an_engine_port_in_use_is_one_clear_message():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, err = failed("up", "small.toml", f"engines.port={port}")
    assert code == 2
    assert f"port {port} of engines.port is in use" in err


def test_one_port_for_the_metrics_of_all_processes_is_refused():
    with pytest.raises(ConfigError, match=r"metrics\.port = 9464: .* set it to 0, which takes free ports"):
        up(Path("small.toml"), ["metrics.port=9464"])


def test_a_redis_port_in_use_is_one_clear_message():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, err = failed("up", "small.toml", f"redis.port={port}")
    assert code == 1
    assert f"port {port} is in use" in err


def test_a_missing_data_file_is_one_clear_message():
    Path("small.toml").write_text(RUN.replace("tasks.chain_sum = { min_terms = 2 }", 'path = "problems.jsonl"'))
    code, err = failed("up", "small.toml")
    assert code == 2
    assert "data.path = problems.jsonl: no such file" in err


def test_no_sglang_is_one_clear_message(monkeypatch):
    monkeypatch.setenv("HEADRACE_SGLANG_PYTHON", sys.executable)
    code, err = failed("up", "small.toml")
    assert code == 2
    assert "cannot import it; `make setup` installs it" in err


def test_an_engine_that_dies_at_its_start_ends_the_run_with_the_end_of_its_log():
    code, err = failed("up", "small.toml")
    assert code == 1
    assert "engine-0 exited with 3; the end of runs/small/logs/engine-0.log" in err
    assert "the stand-in engine does not start" in err
    assert "nothing is lost: once that is put right, `headrace up small.toml` goes on" in err
    assert holder_of(Path("runs/small")) is None
    with pytest.raises(ProcessLookupError):
        os.kill(json.loads(Path("runs/small/redis/server.json").read_text())["pid"], 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_preparation_stops_everything_and_says_how_to_go_on(number, monkeypatch):
    monkeypatch.setenv("STAND_IN_ENGINE", "waits")
    process = headrace("up", "small.toml", "run.seed=2")
    log = Path("runs/small/logs/engine-0.log")
    wait_for(lambda: log.exists() and "waits" in log.read_text())
    engine = int(log.read_text().split()[-1])
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopped; nothing is lost. `headrace up small.toml run.seed=2` goes on" in out
    with pytest.raises(ProcessLookupError):
        os.kill(engine, 0)


def test_a_second_ctrl_c_waits_for_nobody(monkeypatch):
    monkeypatch.setenv("STAND_IN_ENGINE", "stubborn")
    process = headrace("up", "small.toml", "engines.device=cuda", "engines.gpus=[0]")
    log = Path("runs/small/logs/engine-0.log")
    wait_for(lambda: log.exists() and "waits" in log.read_text())
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None, "an engine on GPUs has its grace"
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - begun < 5
    assert process.returncode == 130, err
    assert "nothing is lost" in out


def test_down_stops_a_run_that_is_up(monkeypatch):
    monkeypatch.setenv("STAND_IN_ENGINE", "waits")
    process = headrace("up", "small.toml")
    wait_for(lambda: Path("runs/small/logs/engine-0.log").exists())
    down = headrace("down")
    out, err = down.communicate(timeout=60)
    assert (down.returncode, err) == (0, "")
    assert "the run 'small' is down" in out
    assert process.wait(10) == 130
    process.communicate()


def test_settings_that_nobody_wants_are_told_before_anything_starts():
    process = headrace("up", "small.toml", "rollout.top_p=0.9")
    out, _ = process.communicate(timeout=60)
    assert out.startswith("warning: rollout.top_p = 0.9")


def test_a_finished_run_says_so_and_starts_nothing(capsys):
    config = load("small.toml", ["run.total_steps=5"])
    config.folder.mkdir(parents=True)
    result = {
        "updates": 5,
        "minutes": 1.0,
        "curves": "runs/small/curves.png",
        "redis": "redis://elsewhere:6379/0",
        "commands": ["HGETALL 'hr:{small}:buffer:4'"],
        "held_out": [{"version": v, "success": v / 10, "stderr": 0.02} for v in (3, 5)],
    }
    with locked(config.folder):
        pass
    (config.folder / "run.toml").write_text(to_toml(config))
    (config.folder / "finished.json").write_text(json.dumps(result))
    assert up(Path("small.toml"), ["run.total_steps=5"]) == 0
    out = capsys.readouterr().out
    assert "is finished: 5 updates" in out
    assert "0.30 ± 0.02 at version 3 → 0.50 ± 0.02 at version 5" in out
    assert "curves:      runs/small/curves.png" in out
    assert "-cli -u redis://elsewhere:6379/0 HGETALL 'hr:{small}:buffer:4'" in out


def test_an_embedded_redis_that_is_killed_comes_back_with_its_data():
    config, said = load("small.toml"), []
    with locked(config.folder) as lock:
        launch = Launch(config, [], None, lock)
        launch._start_redis()
        try:
            launch._client.set("remember", "me")
            os.kill(launch._server.process.pid, signal.SIGKILL)
            launch._server.process.wait()
            assert launch._ask(lambda: launch._client.get("remember"), said.append) == b"me"
            assert "Redis has ended, and starts again with all that was written (log: " in said[0]
        finally:
            launch.stop()


def test_a_run_that_stopped_itself_goes_on_when_it_is_started_again(redis_url, capsys):
    import redis

    config = load("small.toml")
    with redis.Redis.from_url(redis_url) as client, locked(config.folder) as lock:
        launch = Launch(config, [], redis_url, lock)
        launch._start_redis()
        launch._reopen()
        assert capsys.readouterr().out == "", "it is not in the ledger yet"
        ledger = Coordinator.create(client, "small", config.ledger_settings)
        ledger.stop("100 failures in a row")
        launch._reopen()
        assert "the run had stopped itself (100 failures in a row); it goes on" in capsys.readouterr().out
        assert not ledger.fields()["stopped"]
        for key in client.scan_iter("hr:{small}*"):
            client.delete(key)


def test_engines_serve_until_no_worker_needs_them(tmp_path):
    """All others are told to stop at once; the engine only when the worker is gone."""
    config, log = load("small.toml"), tmp_path / "log"
    code = (
        "import signal, sys, time\n"
        "def say(what): print(f'{sys.argv[1]} {what}\\n', end='')  # one write: all four share the file\n"
        "def end(*_): time.sleep(float(sys.argv[2])); say(time.monotonic()); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); say('is up'); time.sleep(60)"
    )
    with locked(config.folder) as lock:
        launch = Launch(config, [], "redis://127.0.0.1:1", lock)
        for name, seconds in {"engine-0": 0, "coordinator": 0.6, "trainer": 1.2, "worker-0": 0.6}.items():
            argv = [sys.executable, "-S", "-u", "-c", code, name, str(seconds)]
            launch._supervisor.start(Program(name, argv, log, grace_s=10))
        wait_for(lambda: log.exists() and log.read_text().count("is up") == 4)
        begun = time.monotonic()
        launch.stop()
        ended = {line.split()[0]: float(line.split()[1]) - begun for line in log.read_text().splitlines()[4:]}
    assert ended["worker-0"] < ended["engine-0"] < ended["trainer"] < 2.2, ended
