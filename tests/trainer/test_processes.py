"""Trainers as processes: signals, ranks, and what is refused at the start."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

from pipeline import checkpoint_folder
from pipeline.redis_client import connect
from pipeline.redis_server import RedisServer
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import recorded, train
from tests.waiting import wait_for


def test_sigkill_then_sigterm_of_a_real_trainer_lose_and_repeat_nothing(client, redis_url, run, tmp_path):
    config = make_run(tmp_path, run, total_steps=500, checkpoint_every=500)
    with (config.folder / "run.toml").open("a") as file:
        file.write("[metrics]\nport = 0\n")
    command = [sys.executable, "-W", "error", "-m", "trainer", str(config.folder / "run.toml"), "--redis", redis_url]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with Producer(client, config) as producer:
        process = subprocess.Popen(command, env=environment)
        wait_for(lambda: producer.ledger.weights(2))
        process.kill()
        process.wait()
        killed = producer.ledger.versions()
        process = subprocess.Popen(command, env=environment)
        wait_for(lambda: producer.ledger.weights(max(killed) + 1))
        ((found,),) = (json.loads(path.read_text()) for path in (tmp_path / ".prometheus").glob("*.json"))
        with urllib.request.urlopen(f"http://{found['targets'][0]}/metrics", timeout=10) as reply:
            assert f'headrace_loss{{run="{run}"}}' in reply.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not list((tmp_path / ".prometheus").iterdir()), "that of the killed one, too"
        reached = int(checkpoint_folder.newest(config.folder / "checkpoints").name)
        assert reached > max(killed)
        assert [line["version"] for line in recorded(config)] == list(range(reached))
        more = config.model_copy(update={"run": config.run.model_copy(update={"total_steps": reached + 1})})
        train(more, client)
    assert [line["version"] for line in recorded(config)] == list(range(reached + 1))
    published = producer.ledger.versions()
    assert sorted(published) == list(range(reached + 2))
    assert all(published[version] == found for version, found in killed.items())
    assert published[reached].path != published[reached + 1].path


def test_settings_are_refused_before_torch_is_imported(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[run]\nname = 1\n")
    done = subprocess.run([sys.executable, "-m", "trainer", str(path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "run.name" in done.stderr


def trainer_command(config, url):
    return [sys.executable, "-m", "trainer", str(config.folder / "run.toml"), "--redis", url]


def test_a_trainer_stopped_while_redis_is_away_ends_with_one_message(run, tmp_path):
    config = make_run(tmp_path, run)
    server = RedisServer.start(tmp_path / "redis")
    with connect(server.url) as client:
        ledger = Producer(client, config).ledger  # never started: the trainer waits
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = trainer_command(config, server.url)
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        wait_for(lambda: ledger.weights(0))
    server.stop()
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Redis has not answered" in stderr
    assert "Traceback" not in stderr


def test_other_settings_than_the_runs_are_refused(client, redis_url, run, tmp_path):
    config = make_run(tmp_path, run)
    Producer(client, config)
    path = config.folder / "run.toml"
    path.write_text(path.read_text().replace("lr = 1e-3", "lr = 1e-4"))
    done = subprocess.run(trainer_command(config, redis_url), capture_output=True, text=True)
    assert done.returncode == 2
    assert f"run {run!r} has settings {config.digest}" in done.stderr and "Traceback" not in done.stderr


def test_another_number_of_ranks_than_the_runs_is_refused(redis_url, run, tmp_path):
    config = make_run(tmp_path, run)
    environment = os.environ | {"WORLD_SIZE": "2", "RANK": "0"}
    done = subprocess.run(trainer_command(config, redis_url), capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "trainer.ranks = 1, but 2 were started" in done.stderr


def test_two_ranks_train_on_batches_of_one_trajectory(client, redis_url, run, tmp_path):
    """The second rank has nothing to compute, and joins every collective."""
    config = make_run(tmp_path, run, ranks=2, batch_size=1, total_steps=2, checkpoint_every=1, max_staleness=1)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = launch + trainer_command(config, redis_url)[1:]
    with Producer(client, config) as producer:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line["trajectories"] for line in recorded(config)] == [1, 1]
    assert sorted(producer.ledger.versions()) == [0, 1, 2]
