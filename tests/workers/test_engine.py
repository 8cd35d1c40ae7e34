import asyncio
import urllib.request

import numpy as np
import pytest

from pipeline.config import Rollout
from tests.fixtures_sglang import slow_down
from tests.workers.fake_sglang import FakeSGLang, answer
from workers.engine import (
    Engine,
    EngineAborted,
    EngineError,
    EngineGone,
    EngineRefused,
    EngineSlow,
    WrongWeights,
    connections,
    new_rid,
    sampling,
)

GOOD = "r:3:0123456789abcdef"
STOP = 2


async def published(label):
    return str(label) in (GOOD, GOOD.replace(":3:", ":4:"))


async def ask(url, tokens=(10, 11), max_tokens=8, at_least=0, timeout_s=20.0, **parameters):
    async with connections() as http:
        engine = Engine("e0", url, http, sampling(Rollout(), STOP) | parameters, published, timeout_s)
        return await engine.generate(list(tokens), max_tokens, at_least)


def ask_fake(reply, **options):
    async def main():
        async with FakeSGLang(lambda request: reply).serving() as server:
            return await ask(server.url, **options)

    return asyncio.run(main())


# -- the real server


@pytest.mark.sglang
def test_a_reply_has_one_logprob_a_token_and_the_version_of_its_label(sglang, serve_label):
    serve_label(GOOD)
    reply = asyncio.run(ask(sglang.url, max_tokens=12))
    assert 1 <= len(reply.tokens) == len(reply.logprobs) <= 12
    assert reply.logprobs.dtype == np.float32 and (reply.logprobs < 0).all() and (reply.logprobs > -30).all()
    assert reply.segments == [(0, len(reply.tokens), "e0", 3)]
    assert reply.finish_reason == ("stop" if reply.tokens[-1] == STOP else "length")


@pytest.mark.sglang
def test_the_end_token_is_part_of_the_reply_and_ends_it(sglang, serve_label):
    serve_label(GOOD)
    every = list(range(300))
    reply = asyncio.run(ask(sglang.url, stop_token_ids=every))
    assert reply.finish_reason == "stop" and len(reply.tokens) == len(reply.logprobs)
    assert [token for token in reply.tokens if token in every] == reply.tokens[-1:]


@pytest.mark.sglang
def test_a_stop_string_ends_the_reply_and_its_tokens_stay_as_sampled(sglang, serve_label, chat):
    serve_label(GOOD)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    reply = asyncio.run(ask(sglang.url, max_tokens=400, stop_token_ids=[], ignore_eos=True, stop=letters))
    assert reply.finish_reason == "stop_string" and len(reply.tokens) == len(reply.logprobs)
    assert any(letter in chat.text(reply.tokens) for letter in letters)
    assert not any(letter in chat.text(reply.tokens[:-1]) for letter in letters)


@pytest.mark.sglang
def test_a_request_that_is_aborted_by_its_id_gives_back_what_it_has(sglang, serve_label):
    serve_label(GOOD)

    async def main():
        async with connections() as http:
            parameters = sampling(Rollout(), STOP) | {"stop_token_ids": [], "ignore_eos": True}
            engine, rid = Engine("e0", sglang.url, http, parameters, published, 60), new_rid()
            task = asyncio.create_task(engine.generate([10, 11], 900, rid=rid))
            await asyncio.sleep(0.5)
            await engine.abort(rid)
            with pytest.raises(EngineAborted) as aborted:
                await task
            return aborted.value.partial

    try:
        slow_down(sglang.url, 0.05)  # 900 tokens would take 45 s
        partial = asyncio.run(main())
    finally:
        slow_down(sglang.url, None)
    assert 0 < len(partial.tokens) == len(partial.logprobs) < 900
    assert partial.segments == [(0, len(partial.tokens), "e0", 3)]


@pytest.mark.sglang
def test_a_request_that_is_cancelled_stops_at_the_server(sglang, serve_label):
    serve_label(GOOD)

    async def main():
        task = asyncio.create_task(ask(sglang.url, max_tokens=900, stop_token_ids=[], ignore_eos=True))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        slow_down(sglang.url, 0.05)  # 900 tokens would take 45 s
        asyncio.run(main())
        assert wait_until_idle(sglang.url)
    finally:
        slow_down(sglang.url, None)


@pytest.mark.sglang
def test_a_wrong_request_is_refused_with_the_servers_own_words(sglang):
    with pytest.raises(EngineRefused, match="longer than the model's context length"):
        asyncio.run(ask(sglang.url, tokens=[5] * 5000))


@pytest.mark.sglang
def test_a_server_that_was_just_started_serves_no_published_weights(sglang):
    with pytest.raises(WrongWeights, match="labelled 'base', which were never published"):
        asyncio.run(ask(sglang.url))


def wait_until_idle(url):
    """The cache can be flushed only while nothing runs."""
    for _ in range(20):
        try:
            with urllib.request.urlopen(f"{url}/flush_cache?timeout=1", data=b"", timeout=10):
                return True
        except urllib.error.HTTPError:
            continue
    return False


# -- faults


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (answer(None), WrongWeights, "labelled None"),
        (answer("r:9:0123456789abcdef"), WrongWeights, "never published"),
        (answer(GOOD, logprobs=(None, -1.0)), EngineError, "1 of them not finite"),
        (answer(GOOD, logprobs=(-1.0,)), EngineError, "2 tokens, 1 log-probs"),
        (answer(GOOD, tokens=(), logprobs=()), EngineError, "0 tokens"),
        (answer(GOOD, finish="abort"), EngineAborted, "aborted the request: Aborted"),
        ({"text": "hello"}, EngineError, "not a reply of SGLang's /generate"),
        ((200, "<html>"), EngineError, "expected JSON"),
        ((400, "input_ids cannot be empty"), EngineRefused, "cannot be empty"),
        ((500, "boom"), EngineGone, "HTTP 500: boom"),
        ("drop", EngineGone, "is gone"),
    ],
)
def test_a_reply_that_cannot_be_used_says_what_is_wrong_with_it(reply, error, message):
    with pytest.raises(error, match=message):
        ask_fake(reply)


def test_a_version_below_the_trajectorys_own_is_refused_and_a_newer_one_is_not():
    with pytest.raises(WrongWeights, match="serves version 3, the trajectory needs 4"):
        ask_fake(answer(GOOD), at_least=4)
    assert ask_fake(answer(GOOD.replace(":3:", ":4:")), at_least=3).segments == [(0, 2, "e0", 4)]


def test_a_reply_that_spans_a_publication_has_a_segment_a_version():
    reply = answer(GOOD, tokens=(5, 6, 7), logprobs=(-1, -1, -1))
    spans = [(GOOD, 0, 2), (GOOD.replace(":3:", ":4:"), 2, 3)]
    reply["meta_info"]["weight_versions"] = [{"version": v, "start": s, "end": e} for v, s, e in spans]
    assert ask_fake(reply).segments == [(0, 2, "e0", 3), (2, 1, "e0", 4)]


def test_an_engine_that_does_not_answer_is_slow_and_told_to_stop():
    async def main():
        async with FakeSGLang(lambda request: "hang").serving() as server:
            with pytest.raises(EngineSlow, match=r"no reply within 0\.2 s; raise rollout\.request_timeout_s"):
                await ask(server.url, timeout_s=0.2)
            assert server.aborted == [server.requests[0]["rid"]]

    asyncio.run(main())


def test_nobody_at_the_address_is_gone():
    with pytest.raises(EngineGone, match=r"e0 at http://127\.0\.0\.1:9 is gone"):
        asyncio.run(ask("http://127.0.0.1:9"))
