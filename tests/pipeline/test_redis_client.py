"""Which Redis a process takes, and how long it waits for one that is away."""

import pytest
import redis

from pipeline import redis_client
from pipeline.redis_client import RedisFailed, patient


def test_the_flag_wins_over_the_environment_and_that_over_the_runs_file(monkeypatch):
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert redis_client.find_url() is None
    assert redis_client.find_url(None, "redis://file") == "redis://file"
    monkeypatch.setenv("REDIS_URL", "redis://environment")
    assert redis_client.find_url(None, "redis://file") == "redis://environment"
    assert redis_client.find_url("redis://flag", "redis://file") == "redis://flag"


@pytest.mark.parametrize("error", [*redis_client.AWAY, redis.BusyLoadingError])
def test_a_redis_that_is_away_for_a_moment_is_waited_for_and_said_once(error):
    answers, said = [error("away"), error("away"), 3], []

    def call():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patient(call, 5, said.append) == 3
    assert said == ["Redis does not answer: away; trying again for 5 s"]


def test_nobody_waits_for_redis_without_a_bound():
    def away(error=redis.TimeoutError):
        raise error("away")

    with pytest.raises(RedisFailed, match="once it is back, start this again"):
        patient(away, 0.2, lambda sentence: None)
    with pytest.raises(RedisFailed):
        patient(away, 60, lambda sentence: None, stop=lambda: True)
    with pytest.raises(redis.ResponseError):
        patient(lambda: away(redis.ResponseError))
