"""What the client of a real SGLang server gets whose request runs while new weights are published, under each policy.

version 1 ─▶ a reply of 60 tokens begins ─▶ version 2 is published ─▶ the reply ─▶ each span on its own weights  ≤ 1e-4
"""

import threading
import time

import pytest
import redis

from pipeline import keys
from pipeline.coordinator import Coordinator
from pipeline.engine_fleet import EngineFleet
from pipeline.engine_keeper import Publication
from pipeline.engines import Engine
from pipeline.ledger_types import Weights
from pipeline.weights import Label, read_manifest
from tests.fixtures_sglang import generate, running, slow_down
from tests.waiting import wait_for

pytestmark = pytest.mark.sglang

PROMPT = [5, 6, 7, 8]
TOKENS = 60
SLOW_S = 0.05  # a token
TOLERANCE = 1e-4  # nats


@pytest.fixture
def ledger(redis_url, run):
    with redis.Redis.from_url(redis_url) as client:
        yield Coordinator.create(client, run, {"batch_size": 2})


@pytest.fixture
def slow(engine):
    yield
    slow_down(engine.url, None)


def interrupted(engine: Engine, ledger: Coordinator, published, policy: str) -> tuple[dict, dict[int, Weights]]:
    """The reply that ran while version 2 followed version 1, and both."""
    weights = {}
    for version in (1, 2):
        path = f"weights/{version}-a"
        weights[version] = Weights(version, path, read_manifest(published / path).digest, version, 0)
    fleet = EngineFleet(ledger, [engine.url], Publication(published, 60, policy=policy))
    wait_for(lambda: fleet.follow(weights[1]))
    slow_down(engine.url, SLOW_S)
    replies = []
    thread = threading.Thread(target=lambda: replies.append(generate(engine.url, PROMPT, TOKENS)))
    thread.start()
    wait_for(lambda: running(engine.url))
    time.sleep(10 * SLOW_S)
    wait_for(lambda: fleet.follow(weights[2]))
    thread.join()
    slow_down(engine.url, None)
    return replies[0], weights


def spans(reply: dict) -> list[tuple[int, int, int]]:
    """(version, start, end) of its tokens."""
    return [(Label.parse(s["version"]).version, s["start"], s["end"]) for s in reply["meta_info"]["weight_versions"]]


def differences(engine: Engine, published, run: str, version: int, reply: dict) -> list[float]:
    """Nats, of each token: the reply's log-prob, and what the weights of `version` give it when they read it."""
    engine.bring(published / f"weights/{version}-a", run, timeout_s=60)
    rows = generate(engine.url, PROMPT + reply["output_ids"], 1)["meta_info"]["input_token_logprobs"]
    pairs = zip(rows[len(PROMPT) :], reply["meta_info"]["output_token_logprobs"], strict=True)
    return [abs(read[0] - said[0]) for read, said in pairs]


def states(ledger: Coordinator) -> list[str]:
    """Of the engine, in the order in which the ledger was told them."""
    rows = ledger.client.xrange(keys.events(ledger.run))
    return [fields[b"state"].decode() for _, fields in rows if fields[b"kind"] == b"engine"]


def test_drain_lets_a_reply_finish_under_the_old_weights(engine, slow, ledger, published):
    reply, _ = interrupted(engine, ledger, published, "drain")
    assert reply["meta_info"]["finish_reason"]["type"] == "length" and spans(reply) == [(1, 0, TOKENS)]
    assert max(differences(engine, published, ledger.run, 1, reply)) <= TOLERANCE
    assert states(ledger) == ["starting", "loading", "ready", "draining", "ready"]


def test_interrupt_answers_with_what_there_is_of_the_old_weights(engine, slow, ledger, published):
    reply, _ = interrupted(engine, ledger, published, "interrupt")
    count = len(reply["output_ids"])
    assert reply["meta_info"]["finish_reason"]["type"] == "abort" and spans(reply) == [(1, 0, count)]
    assert 0 < count < TOKENS
    assert max(differences(engine, published, ledger.run, 1, reply)) <= TOLERANCE
    assert states(ledger) == ["starting", "loading", "ready", "loading", "ready"]


def test_retract_goes_on_with_a_reply_under_the_new_weights(engine, slow, ledger, published):
    reply, _ = interrupted(engine, ledger, published, "retract")
    (first, _, end), (second, start, last) = spans(reply)
    assert (first, second) == (1, 2) and 0 < end == start < last == TOKENS
    old, new = (differences(engine, published, ledger.run, version, reply) for version in (1, 2))
    assert max(old[:end]) <= TOLERANCE < max(old[end:])
    assert max(new[end:]) <= TOLERANCE < max(new[:end])
    assert states(ledger) == ["starting", "loading", "ready", "loading", "ready"]
