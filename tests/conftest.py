"""Fixtures of all rooms. Redis is real; the same test also runs on fakeredis, which must never differ.

redis_url   address of a real server, one a session
client      parametrised: fakeredis, then redis_url, which is flushed afterwards; take `run` as the name of the run
"""

import itertools
import os
import signal

import fakeredis
import pytest
import redis
from hypothesis import settings

from pipeline.redis_server import RedisServer
from pipeline.secrets import API_KEY, REDIS_PASSWORD

pytest_plugins = [
    "tests.fixtures_cli",
    "tests.fixtures_users",  # before whoever imports it
    "tests.fixtures_ledger",
    "tests.fixtures_sglang",
    "tests.fixtures_launch",
]

# A slow machine is no failure of a property; pytest's own timeout bounds a test that hangs.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")

# What a person's shell says of a Redis, and of the servers' key, is of a run of theirs.
for name in ("REDIS_URL", REDIS_PASSWORD, f"{REDIS_PASSWORD}_FILE", API_KEY, f"{API_KEY}_FILE"):
    os.environ.pop(name, None)

numbers = itertools.count()

# A shell starts what runs in its background with SIGINT ignored, and so would be every process of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    """A real Redis or Valkey; a machine without any fails with what to install."""
    server = RedisServer.start(tmp_path_factory.mktemp("redis"))
    yield server.url
    server.stop()


@pytest.fixture(params=["fakeredis", "redis"])
def client(request):
    if request.param == "fakeredis":
        with fakeredis.FakeRedis() as client:
            yield client
    else:
        with redis.Redis.from_url(request.getfixturevalue("redis_url")) as client:
            yield client
            client.flushdb()  # what a test looks through must not grow with the tests before it


@pytest.fixture
def run():
    """A run's name that no other test has."""
    return f"test-{os.getpid()}-{next(numbers)}"
