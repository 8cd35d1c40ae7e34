"""What is seen of a run that is not there yet, goes away, comes back, and ends."""

import pytest

from pipeline import onlooker as module
from pipeline.config_file import load
from pipeline.coordinator import Coordinator
from pipeline.onlooker import Onlooker
from pipeline.redis_server import RedisServer
from pipeline.run_folder import locked, open_folder
from tests.waiting import wait_for


@pytest.fixture
def config(headrace):
    headrace("init", "seen", "--recipe", "demo")
    config = load("seen.toml")
    open_folder(config)
    return config


@pytest.fixture
def server(config):
    """The run's own Redis, which holds it."""
    servers = [RedisServer.start(config.folder / "redis")]
    with module.connect(servers[0].url) as client:
        Coordinator.create(client, "seen", config.ledger_settings)
    yield servers[0]
    servers[0].stop()


def test_a_run_that_was_never_up_says_what_starts_it(config):
    sight = Onlooker(config).look()
    assert (sight.snapshot, sight.state) == (None, "waits") and "`headrace up` starts seen" in sight.said


def test_a_run_that_is_being_prepared_is_waited_for(config, redis_url):
    with locked(config.folder):
        assert Onlooker(config).look().said == module.STARTS
    assert "no coordinator has made the run" in Onlooker(config, redis_url).look().said


def test_a_redis_that_goes_away_leaves_the_picture_and_comes_back(config, server):
    with locked(config.folder) as lock:
        lock.write(redis=server.url)
        onlooker = Onlooker(config)
        assert onlooker.look().state == "up" and onlooker.sight.said == ""
        server.process.kill()
        server.process.wait()
        sight = onlooker.look()
        assert sight.state == "away" and "asking again" in sight.said and sight.snapshot.run == "seen"
        again = RedisServer.start(server.folder, server.port)
        try:
            assert wait_for(lambda: onlooker.look().state == "up")
        finally:
            again.stop()


def test_a_run_that_has_ended_is_read_from_its_own_files_once(config, server, monkeypatch):
    server.stop()
    onlooker = Onlooker(config)
    sight = onlooker.look()
    assert sight.state == "down" and "nothing runs, 0 of 60 updates" in sight.said and sight.snapshot.resting
    monkeypatch.setattr(module, "served", None)  # not a second time
    assert onlooker.look().state == "down"


def test_the_thread_looks_until_it_is_left(config, server):
    with locked(config.folder) as lock:
        lock.write(redis=server.url)
        onlooker = Onlooker(config)
        with onlooker.watching(0.05):
            first = wait_for(lambda: onlooker.sight.snapshot)
            assert wait_for(lambda: onlooker.sight.snapshot is not first)


def test_what_was_not_foreseen_in_the_thread_is_not_lost(config, monkeypatch):
    onlooker = Onlooker(config)
    monkeypatch.setattr(onlooker, "look", lambda: 1 / 0)

    def failed():
        try:
            onlooker.sight  # noqa: B018
        except ZeroDivisionError:
            return True

    with onlooker.watching(0.05):
        wait_for(failed)
