"""A scripted HTTP server in SGLang's place, for faults that a real one cannot be made to show."""

import asyncio
import contextlib
import inspect
import json

from aiohttp import web


def answer(label, tokens=(5, 6), logprobs=None, finish="stop"):
    """A reply of /generate; log-probs are -1, -2, … unless given."""
    logprobs = [-1.0 - at for at in range(len(tokens))] if logprobs is None else logprobs
    meta = {"finish_reason": {"type": finish, "message": "Aborted"}, "weight_version": label}
    meta["output_token_logprobs"] = [[p, t, None] for p, t in zip(logprobs, tokens, strict=False)]
    return {"output_ids": list(tokens), "meta_info": meta}


class FakeSGLang:
    """`script(request)` gives the reply's dict, (status, text), "hang" or "drop", or awaits one; requests are kept."""

    def __init__(self, script):
        self.script, self.requests, self.aborted = script, [], []
        self.url = ""
        self.running: dict[str, asyncio.Event] = {}  # rid -> set when it is aborted

    @contextlib.asynccontextmanager
    async def serving(self):
        app = web.Application()
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _generate(self, http):
        self.requests.append(request := await http.json())
        self.running[request["rid"]] = asyncio.Event()
        try:
            reply = self.script(request)
            return await self._answer(http, await reply if inspect.isawaitable(reply) else reply)
        finally:  # also of a client that is gone
            del self.running[request["rid"]]

    async def until_aborted(self, request):
        await self.running[request["rid"]].wait()

    async def _answer(self, http, reply):
        if reply == "hang":
            await asyncio.sleep(60)
        if reply == "drop":
            http.transport.close()
            return web.Response()
        if isinstance(reply, tuple):
            return web.Response(status=reply[0], text=reply[1])
        return web.Response(text=json.dumps(reply), content_type="application/json")

    async def _abort(self, http):
        self.aborted.append(rid := (await http.json())["rid"])
        if rid in self.running:
            self.running[rid].set()
        return web.Response()
