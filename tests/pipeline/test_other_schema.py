"""A run that another headrace made: every command and every process refuses it, says why, and changes nothing."""

import re
import subprocess

import pytest
import redis

from pipeline import keys
from pipeline.config_file import load
from pipeline.coordinator import Coordinator
from pipeline.programs import PYTHON, environment, inherited
from pipeline.run_folder import locked, open_folder

SAID = (
    f"run 'older' was made by another headrace, which keeps it in schema {keys.SCHEMA - 1}, this one in {keys.SCHEMA}: "
    "choose another name, finish the run with that headrace, or begin a new run from its newest checkpoint with "
    "`headrace fork older`"
)


@pytest.fixture
def older(headrace, redis_url, monkeypatch):
    """What Redis holds of the run, as a function."""
    headrace("init", "older", "--recipe", "demo")
    config = load("older.toml", ["metrics.port=0"])
    open_folder(config)
    (config.folder / "events.jsonl").write_text("")
    monkeypatch.setenv("REDIS_URL", redis_url)
    with redis.Redis.from_url(redis_url) as client:
        Coordinator.create(client, "older", config.ledger_settings)
        client.hset(keys.run("older"), "schema", keys.SCHEMA - 1)
        client.hdel(keys.run("older"), "rules", "window")  # which that one knew nothing of
        yield lambda: {
            key: client.hgetall(key) for key in client.scan_iter("hr:{older}*") if client.type(key) == b"hash"
        }
        client.delete(*client.scan_iter("hr:{older}*"))


COMMANDS = [
    "status",
    "buffers",
    "events",
    "prompts list",
    "workers list",
    "workers drain worker-0",
    "engines list",
    "engines add http://127.0.0.1:1",
    "engines remove engine-0",
    "audit",
    "top",
    "web --port 0",
    "backup older",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_reads_the_ledger_refuses_it(headrace, older, command):
    before = older()
    name, *rest = command.split()
    run = [] if "older" in rest else ["--run", "older"]
    code, _, err = headrace(name, *rest, *run)
    assert (code, err) == (2, f"headrace: {SAID}\n")
    assert older() == before


def test_so_does_a_scaling_of_workers(headrace, older):
    with locked(load("runs/older/run.toml").folder):
        code, _, err = headrace("workers", "scale", 2, "--run", "older")
    assert (code, err) == (2, f"headrace: {SAID}\n")


def test_so_does_up_before_it_makes_anything(headrace, older):
    before = older()
    code, _, err = headrace("up", "older.toml", 'engines.urls=["http://127.0.0.1:1"]', "engines.args=[]")
    assert SAID in err and "`headrace up older.toml" in err and code == 1, err
    assert older() == before and not list(load("runs/older/run.toml").folder.glob("weights"))


def test_so_does_the_coordinator(headrace, older):
    before = older()
    code, _, err = headrace("coordinator", "older.toml", "--engine", "http://127.0.0.1:1")
    assert code == 2 and SAID in err
    assert older() == before


def test_so_does_a_worker(older, tiny_model, tmp_path):
    text = (tmp_path / "runs" / "older" / "run.toml").read_text()
    (tmp_path / "here.toml").write_text(re.sub(r"(?s)\[model\.tiny\].*?(?=\n\[)", f'path = "{tiny_model}"', text))
    started = subprocess.run(
        [*PYTHON, "-m", "workers", str(tmp_path / "here.toml")],
        env=inherited(environment()),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert started.returncode == 2 and SAID in started.stderr + started.stdout
