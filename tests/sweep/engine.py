"""Engines in SGLang's place that play the time of a reply, not its computation. `python -m tests.sweep.engine MODEL`

    /generate ─▶ waiting ─▶ one of SLOTS: a token every TOKEN_S ─▶ reply: ids, log-probs, spans of labels
                    ▲            │ abort: what there is    ▲ pause, retract: back to waiting, what there is is kept
                    └────────────┴──────── pause ── load (LOAD_S) ── continue

The prompt says how long its reply shall be: "reply with 93 letters". What pause, abort and load do to running and
waiting requests is what the real server does (0.5.23); a load while nothing is paused waits until all have ended. A
reply that begins again after a pause needs no time for its prompt. The probe is answered from the manifest that was
loaded.
"""

import asyncio
import contextlib
import re
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from aiohttp import web

from pipeline.weights import read_manifest
from tests.sweep.case import ENGINES, LOAD_S, SLOTS, TOKEN_S
from workers.chat import Chat

LETTER = "x"
ASKED = re.compile(r"reply with (\d+) letters")
LOGPROB = -1.5


@dataclass(eq=False)
class Request:
    """left: tokens still to generate, the end token not among them. spans: (label, tokens)."""

    rid: str
    left: int
    ends: bool  # with an end token, unless its limit comes first
    probe: list[int] | None
    done: asyncio.Future = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    spans: list[tuple[str, int]] = field(default_factory=list)
    began: float = 0.0
    timer: asyncio.TimerHandle | None = None


class ScriptedEngine:
    def __init__(self, chat: Chat):
        self.chat, self.letter = chat, chat.encode(LETTER)[0]
        self.label, self.probe = "base", ()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.paused = False
        self.open = asyncio.Event()  # requests may come in; closed while a load waits for those that run
        self.open.set()
        self.ended = asyncio.Event()  # some request has

    # -- requests

    async def generate(self, asked: dict) -> dict:
        request = self._read(asked)
        await self.open.wait()
        self.waiting.append(request)
        self._fill()
        try:
            return self._answer(request, await request.done)
        except asyncio.CancelledError:  # the client is gone
            self.abort(request.rid)
            raise

    def _read(self, asked: dict) -> Request:
        tokens, limit = asked["input_ids"], asked["sampling_params"]["max_new_tokens"]
        probe = tokens if "logprob_start_len" in asked else None
        length = ASKED.search(self.chat.text(tokens))
        kept = 0
        while kept < len(tokens) and tokens[-1 - kept] == self.letter:
            kept += 1
        left = int(length[1]) - kept if length else limit
        return Request(asked.get("rid", ""), min(left, limit), left < limit, probe)

    def _fill(self) -> None:
        while not self.paused and self.waiting and len(self.running) < SLOTS:
            request = self.waiting.popleft()
            self.running.append(request)
            request.began = time.monotonic()
            reason = "stop" if request.ends else "length"
            request.timer = asyncio.get_running_loop().call_later(request.left * TOKEN_S, self._end, request, reason)

    def _stop(self, request: Request, all_of_it: bool = False) -> None:
        """Out of its slot, with the tokens that it has by now."""
        request.timer.cancel()
        self.running.remove(request)
        elapsed = int((time.monotonic() - request.began) / TOKEN_S)
        count = request.left if all_of_it else min(request.left, elapsed)
        request.left -= count
        if count:
            request.spans.append((self.label, count))

    def _end(self, request: Request, reason: str) -> None:
        if request in self.running:
            self._stop(request, all_of_it=reason != "abort")
        else:
            self.waiting.remove(request)
        if not request.done.done():
            request.done.set_result(reason)
        self.ended.set()
        self._fill()

    def _answer(self, request: Request, reason: str) -> dict:
        spans, at = [], 0
        if reason == "stop":  # the end token is sampled with the last letter
            label, count = request.spans.pop() if request.spans else (self.label, 0)
            request.spans.append((label, count + 1))
        for label, count in request.spans:
            spans.append({"version": label, "start": at, "end": at + count})
            at += count
        tokens = [self.letter] * at
        finish = {"type": reason, "message": "Aborted"}
        if reason == "stop":
            tokens[-1] = finish["matched"] = self.chat.end_token
        meta = {"finish_reason": finish, "weight_version": self.label, "weight_versions": spans}
        meta["output_token_logprobs"] = [[LOGPROB, token, None] for token in tokens]
        if request.probe:
            logprobs = [None, *self.probe]
            meta["input_token_logprobs"] = [[p, t, None] for p, t in zip(logprobs, request.probe, strict=False)]
        return {"output_ids": tokens, "meta_info": meta}

    def abort(self, rid: str) -> None:
        """All whose id begins with it."""
        for request in [r for r in [*self.running, *self.waiting] if r.rid.startswith(rid)]:
            self._end(request, "abort")

    # -- weights

    def pause(self, mode: str) -> None:
        self.paused = True
        if mode == "abort":
            self.abort("")
        for request in reversed(self.running[:]):
            self._stop(request)
            self.waiting.appendleft(request)

    def go_on(self) -> None:
        self.paused = False
        self._fill()

    async def load(self, folder: str, label: str) -> None:
        self.open.clear()
        while not self.paused and (self.running or self.waiting):
            self.ended.clear()
            await self.ended.wait()
        await asyncio.sleep(LOAD_S)
        manifest = read_manifest(Path(folder))
        self.label, self.probe = label, manifest.probe_logprobs
        self.open.set()


def application(engine: ScriptedEngine) -> web.Application:
    """The part of SGLang's HTTP API that a run uses."""

    def answer(found: dict) -> web.Response:
        return web.Response(body=orjson.dumps(found), content_type="application/json")

    async def generate(http: web.Request) -> web.Response:
        return answer(await engine.generate(orjson.loads(await http.read())))

    async def abort(http: web.Request) -> web.Response:
        asked = await http.json()
        engine.abort("" if asked.get("abort_all") else asked["rid"])
        return web.Response()

    async def pause(http: web.Request) -> web.Response:
        engine.pause((await http.json())["mode"])
        return answer({"status": "ok"})

    async def go_on(http: web.Request) -> web.Response:
        engine.go_on()
        return answer({"status": "ok"})

    async def load(http: web.Request) -> web.Response:
        asked = await http.json()
        await engine.load(asked["model_path"], asked["weight_version"])
        return answer({"success": True})

    async def loads(http: web.Request) -> web.Response:
        return answer({"loads": [{"num_running_reqs": len(engine.running), "num_waiting_reqs": len(engine.waiting)}]})

    async def model_info(http: web.Request) -> web.Response:
        return answer({"weight_version": engine.label})

    app = web.Application(client_max_size=1 << 24)
    app.router.add_get("/model_info", model_info)
    app.router.add_get("/v1/loads", loads)
    posts = {"/generate": generate, "/abort_request": abort, "/update_weights_from_disk": load}
    posts |= {"/pause_generation": pause, "/continue_generation": go_on}
    for path, handler in posts.items():
        app.router.add_post(path, handler)
    return app


async def serve(model: str) -> None:
    """All engines of a run; prints their URLs in one line."""
    urls, chat = [], Chat(model)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(ENGINES):
            runner = web.AppRunner(application(ScriptedEngine(chat)), shutdown_timeout=0.1, handler_cancellation=True)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        print(*urls, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
