"""The processes of a run while it trains, with stand-ins: which start again, which end, and what ends the run."""

import sys

import pytest
import redis

from pipeline import crew as crews
from pipeline import keys, programs
from pipeline.config import Config
from pipeline.supervisor import ProcessFailed, Program, Supervisor
from tests.waiting import wait_for

RUN = {"run": {"name": "small"}, "model": {"path": "model"}, "data": {"tasks": {"chain_sum": {"min_terms": 2}}}}


@pytest.fixture
def crew(monkeypatch, tmp_path, redis_url):
    config = Config.model_validate(RUN)

    def sleeper(name):
        code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(60)"
        return Program(name, [sys.executable, "-S", "-c", code], tmp_path / f"{name}.log", grace_s=5)

    monkeypatch.setattr(programs, "coordinator", lambda config, url, engines: sleeper("coordinator"))
    monkeypatch.setattr(programs, "trainer", lambda config, url: sleeper("trainer"))
    monkeypatch.setattr(programs, "worker", lambda config, name, url: sleeper(name))
    supervisor, said = Supervisor(), []
    with redis.Redis.from_url(redis_url) as client:
        crew = crews.Crew(config, supervisor, client, redis_url, [], said.append)
        crew.said = said
        crew.start()
        crew.look()
        yield crew
        supervisor.hurry = True
        supervisor.stop()
        client.delete("hr:{small}", "hr:{small}:launcher")


def ends(crew, name, code):
    """Let a stand-in end with `code`, and the crew notice it."""
    process = crew.supervisor.processes[name].popen
    process.kill()
    process.wait()
    process.returncode = code
    crew.look()


def says(crew, **fields):
    """What the ledger then tells of the run."""
    crew.client.hset(keys.run("small"), mapping={"schema": keys.SCHEMA, **fields})


def test_a_crew_that_cannot_reach_redis_has_started_nothing_and_may_begin_again(crew):
    away = redis.Redis(port=1, retry=None)
    again = crews.Crew(crew.config, Supervisor(), away, crew.redis_url, [], crew.said.append)
    with pytest.raises(redis.ConnectionError):
        again.start()
    assert again.supervisor.names == set()


def test_a_worker_that_dies_starts_again(crew):
    ends(crew, "worker-0", -9)
    assert "worker-0 was killed by SIGKILL; it starts again in 1 s" in crew.said[0]
    wait_for(lambda: crew.look() or "worker-0" in crew.supervisor.processes, 5)


def test_a_process_that_keeps_dying_ends_the_run_with_the_end_of_its_log(crew):
    crew.supervisor.processes["trainer"].failures = crews.RESTARTS["trainer"]
    crew.supervisor.processes["trainer"].program.log.write_text("loss is NaN\n")
    with pytest.raises(ProcessFailed, match=r"(?s)trainer exited with 1.*loss is NaN.*failed 3 times in a row"):
        ends(crew, "trainer", 1)


def test_a_trainer_that_makes_updates_between_its_deaths_starts_again_however_often(crew):
    for version in range(1, 2 * crews.RESTARTS["trainer"] + 3):
        says(crew, version=version, stopped="")
        ends(crew, "trainer", -9)
        assert "it starts again in 1 s" in crew.said[-1]
        wait_for(lambda: crew.look() or "trainer" in crew.supervisor.processes, 5)


def test_a_run_that_stopped_itself_is_not_tried_again(crew):
    says(crew, version=3, stopped="100 failures in a row")
    with pytest.raises(ProcessFailed, match="the run has stopped itself: 100 failures in a row"):
        ends(crew, "trainer", 1)


def test_what_ended_while_redis_was_away_is_dealt_with_afterwards(crew, monkeypatch):
    def away():
        raise redis.ConnectionError("refused")

    says(crew, version=100)
    with monkeypatch.context() as patch, pytest.raises(redis.ConnectionError):
        patch.setattr(crew, "_all_updates_made", away)
        ends(crew, "trainer", 0)
    crew.look()
    assert crew.trained


def test_wrong_settings_are_not_tried_again(crew):
    with pytest.raises(ProcessFailed, match="coordinator exited with 2"):
        ends(crew, "coordinator", 2)


def test_a_trainer_that_made_its_last_update_ends_the_training(crew):
    says(crew, version=100)
    ends(crew, "trainer", 0)
    assert crew.trained
    ends(crew, "coordinator", 0)
    assert "coordinator" not in crew.supervisor.names, "after the end it may end as well"


def test_a_trainer_that_somebody_stopped_starts_again(crew):
    says(crew, version=99)
    ends(crew, "trainer", 0)
    assert not crew.trained
    assert "trainer" in crew.supervisor.names


def test_workers_follow_what_is_wanted(crew):
    def running():
        crew.look()
        return {name for name in crew.supervisor.names if name.startswith("worker")}

    assert running() == {"worker-0"}
    crews.want_workers(crew.client, "small", crews.scaled(["worker-0"], 3))
    assert running() == {"worker-0", "worker-1", "worker-2"}
    crews.want_workers(crew.client, "small", ["worker-0"])
    wait_for(lambda: running() == {"worker-0"}, 5)
    assert crew.said == [], "a worker that is drained has not failed"


def test_a_worker_that_ends_by_itself_stays_away_until_it_is_wanted_anew(crew):
    ends(crew, "worker-0", 0)
    crew.look()
    assert "worker-0" not in crew.supervisor.names
    crews.want_workers(crew.client, "small", [])
    crew.look()
    crews.want_workers(crew.client, "small", ["worker-0"])
    crew.look()
    assert "worker-0" in crew.supervisor.names


def test_a_worker_that_is_wanted_again_before_it_has_ended_starts_again(crew):
    crews.want_workers(crew.client, "small", [])
    crew.look()
    ending = crew.supervisor.processes["worker-0"].popen
    crews.want_workers(crew.client, "small", ["worker-0"])
    ending.wait(5)
    crew.look()
    assert crew.supervisor.processes["worker-0"].popen.pid != ending.pid
