"""One SGLang server as an episode sees it: token ids in; token ids, their log-probs and their weights' version out.

    Engine.generate(tokens, n) ──POST /generate──▶ SGLang ──▶ Reply(tokens, logprobs, finish_reason, segments)
           cancelled           ──POST /abort_request──▶       the server really stops
           .abort(rid)         ──POST /abort_request──▶       generate raises EngineAborted, with what there was

Every reply carries the label `run:version:digest` of the weights behind it. A label that was never published, or of a
version below the trajectory's own, means that the engine serves the wrong weights: the reply is refused (WrongWeights).
A worker has hundreds of requests in flight, so what a request costs counts: aiohttp 0.3 ms of CPU (httpx 2 to 5 ms),
orjson 0.03 ms for a reply of 200 log-probs (json 0.1 ms).
"""

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import aiohttp
import numpy as np
import orjson

from pipeline import config
from pipeline.engines import UNAUTHORIZED, wrong_key
from pipeline.errors import HeadraceError
from pipeline.secrets import authorization
from pipeline.trajectory import Segment
from pipeline.weights import Label

CONNECT_S = 5.0
ABORT_S = 2.0
KEEPALIVE_S = 2.0  # below the server's own 5 s, so that a request never meets a connection that is being closed
PROCESS, NUMBERS = uuid.uuid4().hex[:16], itertools.count()  # of this process's requests


class EngineError(HeadraceError):
    """A reply that cannot be used; the entry is given back."""

    code = "ENGINE"


class EngineGone(EngineError):
    """Nobody answers, or with a server error."""

    code = "ENGINE_GONE"


class EngineAborted(EngineError):
    """It was told to stop before the end; partial: the reply until then, possibly without a token."""

    code = "ENGINE_ABORTED"

    def __init__(self, message: str, partial: "Reply"):
        super().__init__(message)
        self.partial = partial


class EngineSlow(EngineError):
    """No answer within rollout.request_timeout_s; slow is not dead."""

    code = "ENGINE_SLOW"


class EngineRefused(EngineError):
    """The server found the request wrong (HTTP 4xx)."""

    code = "ENGINE_REFUSED"


class WrongWeights(EngineError):
    """It serves weights that were never published, or that are older than the trajectory's."""

    code = "WRONG_WEIGHTS"


class Reply(NamedTuple):
    """tokens: [n] ids, the end token included; logprobs: [n] float32, nats, at the sampling temperature;
    finish_reason: "stop" (the end token) | "stop_string" | "length" | "abort" | "truncated";
    segments: of the n tokens, start counted within them."""

    tokens: list[int]
    logprobs: np.ndarray
    finish_reason: str
    segments: list[Segment]


Published = Callable[[Label], Awaitable[bool]]  # was this label published?


def sampling(rollout: config.Rollout, stop_token: int, temperature: float | None = None) -> dict[str, Any]:
    """SGLang's sampling parameters of this run; `temperature` in place of the rollouts' own."""
    return {
        "temperature": rollout.temperature if temperature is None else temperature,
        "top_p": rollout.top_p,
        "top_k": rollout.top_k,
        "stop_token_ids": [stop_token],
        "stop": rollout.stop,
    }


def new_rid() -> str:
    """Ids of one length: the server aborts every request whose id begins with the given one."""
    return f"{PROCESS}{next(NUMBERS):016x}"


def connections() -> aiohttp.ClientSession:
    """One for all engines of a process, with the key that they ask for; as many connections as there are requests;
    nothing of what browsers want."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
        headers={"Content-Type": "application/json", **authorization()},
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


class Engine:
    """published: whether a label is one of the ledger's versions. timeout_s: of one request."""

    def __init__(
        self,
        name: str,
        url: str,
        http: aiohttp.ClientSession,
        sampling: dict[str, Any],
        published: Published,
        timeout_s: float,
    ):
        self.name, self.url = name, url.rstrip("/")
        self._http, self._sampling, self._published = http, sampling, published
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)

    async def generate(
        self, tokens: list[int], max_tokens: int, at_least: int = 0, seed: int = 0, rid: str | None = None
    ) -> Reply:
        """Continue `tokens` by at most `max_tokens`, under a version >= `at_least`. Raises EngineError.

        seed: the episode's; rid: what `abort` knows the request by, from `new_rid`.
        """
        rid = rid or new_rid()
        request = {
            "input_ids": tokens,
            "sampling_params": self._sampling | {"max_new_tokens": max_tokens, "sampling_seed": seed},
            "return_logprob": True,
            "rid": rid,
        }
        try:
            answer = await self._post(request)
        except asyncio.CancelledError:
            await self.abort(rid)
            raise
        return await self._read(answer, at_least)

    async def abort(self, rid: str) -> None:
        """Stop a request at the server. A server that cannot be reached has nothing to stop."""
        timeout = aiohttp.ClientTimeout(total=ABORT_S)
        try:
            async with self._http.post(f"{self.url}/abort_request", data=orjson.dumps({"rid": rid}), timeout=timeout):
                pass
        except (aiohttp.ClientError, TimeoutError):
            pass

    async def _post(self, request: dict[str, Any]) -> dict[str, Any]:
        body, url = orjson.dumps(request), f"{self.url}/generate"
        try:
            async with self._http.post(url, data=body, timeout=self._timeout) as response:
                text = await response.read()
                status = response.status
        except TimeoutError as error:  # aiohttp's own for connecting is also a ClientError
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise EngineGone(f"engine {self.name} at {self.url} accepts no connection in {CONNECT_S} s") from None
            await self.abort(request["rid"])
            raise EngineSlow(
                f"engine {self.name}: no reply within {self._timeout.total} s; raise rollout.request_timeout_s if its "
                "replies take that long"
            ) from None
        except aiohttp.ClientError as error:
            raise EngineGone(f"engine {self.name} at {self.url} is gone: {error}") from None
        if status == UNAUTHORIZED:
            raise EngineRefused(f"engine {self.name} at {wrong_key(self.url)}")
        if 400 <= status < 500:
            raise EngineRefused(f"engine {self.name} refused the request: {text[:500].decode(errors='replace')}")
        if status != 200:
            raise EngineGone(f"engine {self.name} answered HTTP {status}: {text[:500].decode(errors='replace')}")
        try:
            return orjson.loads(text)
        except ValueError:
            raise EngineError(f"engine {self.name}: expected JSON, found {text[:200]!r}") from None

    async def _read(self, answer: dict[str, Any], at_least: int) -> Reply:
        try:
            tokens, meta = answer["output_ids"], answer["meta_info"]
            finish = meta["finish_reason"]
            logprobs = np.array([item[0] for item in meta.get("output_token_logprobs") or ()], dtype=np.float32)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise EngineError(f"engine {self.name}: not a reply of SGLang's /generate: {error!r}") from None
        aborted = finish["type"] == "abort"
        if not (tokens or aborted) or len(logprobs) != len(tokens) or not np.isfinite(logprobs).all():
            raise EngineError(
                f"engine {self.name}: expected tokens with one finite log-prob each, found {len(tokens)} tokens, "
                f"{len(logprobs)} log-probs, {int(np.count_nonzero(~np.isfinite(logprobs)))} of them not finite"
            )
        whole = [{"version": meta.get("weight_version"), "start": 0, "end": len(tokens)}]
        spans = (meta.get("weight_versions") or whole) if tokens else ()
        segments = [
            Segment(s["start"], s["end"] - s["start"], self.name, await self._version(s["version"], at_least))
            for s in spans
        ]
        by_string = finish["type"] == "stop" and finish.get("matched") in self._sampling.get("stop", ())
        reply = Reply(tokens, logprobs, "stop_string" if by_string else finish["type"], segments)
        if aborted:
            raise EngineAborted(f"engine {self.name} aborted the request: {finish.get('message')}", reply)
        return reply

    async def _version(self, text: str | None, at_least: int) -> int:
        label = Label.parse(text)
        if label is None or not await self._published(label):
            raise WrongWeights(f"engine {self.name} serves weights labelled {text!r}, which were never published here")
        if label.version < at_least:
            raise WrongWeights(f"engine {self.name} serves version {label.version}, the trajectory needs {at_least}")
        return label.version
