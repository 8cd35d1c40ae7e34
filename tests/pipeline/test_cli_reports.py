"""The commands on a run that is there: what they tell of it, what is told to it, and what they refuse."""

import json
import os
import subprocess
import sys

import click
import pytest
import redis

from pipeline import cli_look, cli_reports, crew, engine_list, evals, reports
from pipeline.cli import cli
from pipeline.config_file import load
from pipeline.coordinator import Coordinator
from pipeline.progress import Progress, record_metrics
from pipeline.redis_server import RedisServer
from pipeline.run_folder import find_run, holder_of, locked, open_folder


@pytest.fixture
def ledger(headrace, redis_url, monkeypatch):
    """A run with three prompts, one of them in flight at worker-0, in a real Redis."""
    headrace("init", "small", "--recipe", "demo")
    config = load("small.toml")
    open_folder(config)
    monkeypatch.setenv("REDIS_URL", redis_url)
    with redis.Redis.from_url(redis_url) as client:
        ledger = Coordinator.create(client, "small", config.ledger_settings)
        ledger.add_prompts([{"id": f"p{i}", "alpha": 1 + i, "beta": 2} for i in range(3)])
        ledger.register_engine("engine-0", 0, url="http://127.0.0.1:1")
        ledger.join("trainer-1", 0)
        ledger.publish("trainer-1", 0, "weights/0", "abc")
        ledger.reserve("worker-0-abc", "engine-0")
        yield ledger
        for key in client.scan_iter("hr:{small}*"):
            client.delete(key)


def test_a_report_without_any_run_says_what_was_expected(headrace):
    code, _, err = headrace("status")
    assert code == 2
    assert "expected a name in runs/ or a RUN.toml; there: none" in err


def test_a_report_of_a_run_that_was_never_up_says_so(headrace):
    headrace("init", "mine", "--recipe", "demo")
    code, _, err = headrace("status", "mine")
    assert code == 1
    assert "it was never up here" in err


def test_a_redis_that_is_gone_is_one_clear_message(headrace):
    headrace("init", "mine", "--recipe", "demo")
    code, _, err = headrace("status", "mine", "--redis", "redis://127.0.0.1:1/0")
    assert code == 1
    assert "no Redis answers at redis://127.0.0.1:1/0" in err


def test_a_redis_that_does_not_know_the_run_is_one_clear_message(headrace, redis_url):
    headrace("init", "unheard-of", "--recipe", "demo")
    code, _, err = headrace("buffers", "unheard-of", "--redis", redis_url)
    assert code == 1
    assert "run 'unheard-of' is not in this Redis" in err


def test_status_and_buffers_tell_where_the_run_is(headrace, ledger):
    Progress(ledger.client, "small", "trainer", "trainer").waiting("buffer 0: 0 of 64 occupied")
    code, out, _ = headrace("status", "--json")
    assert code == 0
    status = json.loads(out)
    assert (status["version"], status["reserved"]) == (0, 1)
    assert status["redis"].startswith("127.0.0.1:")  # what redis-cli -p needs
    assert status["processes"][0]["does"] == "waits for buffer 0: 0 of 64 occupied"
    text = headrace("status", "small")[1]
    assert "buffer 0: 0 of 64 occupied" in text
    buffers = json.loads(headrace("buffers", "small.toml", "--json")[1])
    assert [row["buffer"] for row in buffers] == [0, 1, 2]
    assert sum(row["reserved"] for row in buffers) == 1
    assert "PENDING" in headrace("buffers")[1]


def test_a_run_that_is_not_up_does_not_look_as_if_it_were(headrace):
    headrace("init", "ended", "--recipe", "demo")
    config = load("ended.toml")
    open_folder(config)
    server = RedisServer.start(config.folder / "redis")
    with redis.Redis.from_url(server.url) as client:
        ledger = Coordinator.create(client, "ended", config.ledger_settings)
        ledger.add_prompts([{"id": "p0"}])
        ledger.register_engine("engine-0", 0)
        ledger.join("trainer-1", 0)
        ledger.reserve("worker-0-abc", "engine-0")
        Progress(client, "ended", "trainer", "trainer").busy_for(3600, update="0 on 64 trajectories")  # was killed
        with locked(config.folder) as lock:
            lock.write(redis=server.url)
            up = json.loads(headrace("status", "--json")[1])
            assert up["state"].startswith("up: `headrace up`, process") and up["trainer"] == "trainer-1"
            assert up["processes"][0]["does"] == "update 0 on 64 trajectories"
    server.stop()
    status = json.loads(headrace("status", "ended", "--json")[1])
    down = "nothing runs, 0 of 60 updates are made; `headrace up` goes on with ended"
    assert (status["state"], status["waiting"]) == (f"down: {down}", down)
    assert (status["trainer"], status["engines"], status["workers"], status["processes"]) == ("", [], [], [])
    assert status["reserved"] == 1, "what the ledger holds is told all the same"


def test_a_run_that_has_stopped_itself_says_why_first(headrace, ledger):
    ledger.stop("3 failures in a row; the last one: the tool did not answer")
    out = headrace("status", "small")[1].splitlines()
    assert out[1].split(maxsplit=1)[1] == "stopped: 3 failures in a row; the last one: the tool did not answer"


def test_what_the_newest_update_warns_of_is_in_the_status(headrace, ledger):
    assert json.loads(headrace("status", "--json")[1])["alarms"] == ""
    line = {"version": 5, "skipped": 0, "mismatch_alarm": 1, "mismatch_kl": 0.31, "mismatch_max": 4.2}
    record_metrics(ledger.client, ledger.run, line)
    assert "trainer and engines disagree: mismatch_kl 0.31" in json.loads(headrace("status", "--json")[1])["alarms"]
    assert "trainer and engines disagree: mismatch_kl 0.31" in headrace("status")[1]


def test_an_evaluation_that_failed_is_in_the_status_with_its_reason(headrace, ledger):
    evals.request(ledger.client, "small", 0)
    evals.fail(ledger.client, "small", 0, "", "no worker has claimed it within 60 s")
    assert "no worker has claimed it within 60 s" in headrace("status")[1]
    (found,) = json.loads(headrace("status", "--json")[1])["evaluations"]
    assert (found["version"], found["state"], found["success"]) == (0, "failed", None)


def test_workers_are_listed_with_what_they_do(headrace, ledger):
    assert "nothing: it does not report" in headrace("workers", "list")[1]
    progress = Progress(ledger.client, "small", "worker-0", "worker")
    progress.working(in_flight=8, tokens_s=41, failures=0, evaluating="")
    assert "8 episodes in flight, 41 tokens/s" in headrace("workers", "list")[1]
    Progress(ledger.client, "small", "worker-0", "worker").working(evaluating=15)
    (row,) = json.loads(headrace("workers", "list", "--json")[1])
    assert row["does"] == "evaluates version 15" and row["host"]


def test_every_command_on_a_run_takes_it_as_its_last_argument_or_by_name(headrace, ledger):
    known = [*cli_reports.COMMANDS, *cli_look.COMMANDS, cli.commands["eval"]]
    commands = [c for one in known for c in getattr(one, "commands", {"": one}).values()]
    for command in commands:
        assert [p.name for p in command.params if isinstance(p, click.Argument)][-1] == "run"
        assert "--run" in [option for p in command.params for option in p.opts]
    assert headrace("buffers", "small")[1] == headrace("buffers", "--run", "small")[1]
    code, _, err = headrace("buffers", "small", "--run", "other")
    assert code == 2 and "one run, please" in err


def test_prompts_are_listed_the_most_uncertain_first(headrace, ledger):
    rows = json.loads(headrace("prompts", "list", "--json")[1])
    assert [row["id"] for row in rows] == ["p1", "p2", "p0"]  # 2/4, 3/5, 1/3
    assert {row["state"] for row in rows} == {"idle", "in flight"}


def test_events_are_one_line_each(headrace, ledger):
    code, out, _ = headrace("events", "small", "--count", "3", "--json")
    assert code == 0
    kinds = [json.loads(line)["kind"] for line in out.splitlines()]
    assert len(kinds) == 3
    assert "reserve" in kinds[-1]
    assert len(headrace("events", "small")[1].splitlines()) > 3


def test_workers_are_listed_and_drained_by_their_name(headrace, ledger):
    rows = json.loads(headrace("workers", "list", "--json")[1])
    assert [(row["worker"], row["in flight"], row["draining"]) for row in rows] == [("worker-0-abc", 1, False)]
    code, _, err = headrace("workers", "drain", "worker")
    assert code == 1, "no prefix: the name of a process"
    crew.want_workers(ledger.client, "small", ["worker-0", "worker-1"])
    code, out, _ = headrace("workers", "drain", "worker-0", "--json")
    assert (code, json.loads(out)["workers"]) == (0, ["worker-0-abc"])
    assert crew.wanted_workers(ledger.client, "small") == ["worker-1"], "scale 1 is worker-1, not the one that ends"
    assert ledger.renew("worker-0-abc", []).drain
    code, _, err = headrace("workers", "drain", "worker-9")
    assert code == 1
    assert "there are worker-0-abc" in err


def test_scaling_needs_a_run_that_is_up_and_keeps_the_names_there_are(headrace, ledger):
    code, _, err = headrace("workers", "scale", "3", "small")
    assert code == 1
    assert "is not up" in err
    with locked(find_run("small").folder):
        crew.want_workers(ledger.client, "small", ["worker-1"])
        assert "workers: 1 → 3" in headrace("workers", "scale", "3", "small")[1]
        scaled = json.loads(headrace("workers", "scale", "3", "small", "--json")[1])
        assert scaled["before"] == scaled["workers"] == ["worker-1", "worker-0", "worker-2"]
        assert crew.wanted_workers(ledger.client, "small") == ["worker-1", "worker-0", "worker-2"]
        headrace("workers", "scale", "1")
        assert crew.wanted_workers(ledger.client, "small") == ["worker-1"]


def test_engines_join_and_leave_by_hand(headrace, ledger):
    added = json.loads(headrace("engines", "add", "http://10.0.0.7:30000/", "small", "--json")[1])
    assert (added["engine"], added["url"]) == ("10.0.0.7:30000", "http://10.0.0.7:30000")
    headrace("engines", "add", "http://10.0.0.7:30000", "small")  # twice is once
    rows = json.loads(headrace("engines", "list", "small", "--json")[1])
    assert [(row["name"], row["state"]) for row in rows] == [("10.0.0.7:30000", "starting"), ("engine-0", "ready")]
    assert "0 ready ones are left" in headrace("engines", "remove", "engine-0", "small")[1]
    rows = json.loads(headrace("engines", "list", "small", "--json")[1])
    assert [row["name"] for row in rows] == ["10.0.0.7:30000"]
    given = ["http://127.0.0.1:1", "http://127.0.0.1:2/"]
    wanted = {"engine-1": "http://127.0.0.1:2", "10.0.0.7:30000": "http://10.0.0.7:30000"}
    assert engine_list.wanted(ledger.client, "small", given) == wanted


@pytest.mark.parametrize(
    "url", ["10.0.0.7:30000", "http://10.0.0.7", "http://10.0.0.7:x", "http://h:1/v1", "ftp://h:1"]
)
def test_an_engine_needs_a_whole_address(headrace, ledger, url):
    code, _, err = headrace("engines", "add", url, "small")
    assert code == 2 and "such as http://10.0.0.7:30000" in err


def test_an_engine_that_is_not_there_cannot_leave(headrace, ledger):
    code, _, err = headrace("engines", "remove", "engine-7", "small")
    assert code == 1 and "there are engine-0" in err


def test_engines_are_told_to_a_run_that_is_up_alone(headrace, ledger, monkeypatch):
    monkeypatch.delenv("REDIS_URL")
    code, _, err = headrace("engines", "add", "http://10.0.0.7:30000", "small")
    assert code == 1 and "is not up" in err


def test_down_of_a_run_that_is_not_up_is_no_failure(headrace):
    headrace("init", "mine", "--recipe", "demo")
    code, out, _ = headrace("down", "mine")
    assert code == 0
    assert "is not up" in out
    assert not json.loads(headrace("down", "mine", "--json")[1])["was_up"]


def test_two_reports_on_a_run_that_is_not_up_wait_for_each_other(headrace):
    headrace("init", "mine", "--recipe", "demo")
    folder = load("mine.toml").folder
    open_folder(load("mine.toml"))
    server = RedisServer.start(folder / "redis")
    with redis.Redis.from_url(server.url) as client:
        Coordinator.create(client, "mine", load("mine.toml").ledger_settings)
    server.stop()
    argv = [sys.executable, "-m", "pipeline.cli", "buffers", "--json"]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=60) for process in both]
    assert [json.loads(out)[0]["buffer"] for out, _ in answers] == [0, 0], answers


def test_a_run_is_not_up_while_a_report_holds_it(tmp_path):
    with locked(tmp_path, report=True):
        assert holder_of(tmp_path) is None
    with locked(tmp_path):
        assert holder_of(tmp_path)["pid"] == os.getpid()


def test_a_redis_that_refuses_is_one_message(headrace, monkeypatch):
    def refuses(*_):
        raise redis.ResponseError("NOPERM this user has no permissions")

    monkeypatch.setattr(reports, "down", refuses)
    code, _, err = headrace("down")
    assert code == 1
    assert err == (
        "headrace: Redis does not answer as it should: NOPERM this user has no permissions; "
        "start it again, then this command\n"
    )


def test_plot_without_a_single_update_says_so(headrace):
    headrace("init", "mine", "--recipe", "demo")
    open_folder(load("mine.toml"))
    code, _, err = headrace("plot", "mine")
    assert code == 1
    assert "nothing to plot" in err
