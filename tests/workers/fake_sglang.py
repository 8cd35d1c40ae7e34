"""A scripted HTTP server in SGLang's place, for faults that a real one cannot be made to show."""

import asyncio
import contextlib
import json

from aiohttp import web


def answer(label, tokens=(5, 6), logprobs=(-1.0, -2.0), finish="stop"):
    """A reply of /generate."""
    meta = {"finish_reason": {"type": finish, "message": "Aborted"}, "weight_version": label}
    meta["output_token_logprobs"] = [[p, t, None] for p, t in zip(logprobs, tokens, strict=False)]
    return {"output_ids": list(tokens), "meta_info": meta}


class FakeSGLang:
    """`script(request)` gives the reply's dict, (status, text), "hang" or "drop"; requests are kept."""

    def __init__(self, script):
        self.script, self.requests, self.aborted = script, [], []
        self.url = ""

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
        self.requests.append(await http.json())
        reply = self.script(self.requests[-1])
        if reply == "hang":
            await asyncio.sleep(60)
        if reply == "drop":
            http.transport.close()
            return web.Response()
        if isinstance(reply, tuple):
            return web.Response(status=reply[0], text=reply[1])
        return web.Response(text=json.dumps(reply), content_type="application/json")

    async def _abort(self, http):
        self.aborted.append((await http.json())["rid"])
        return web.Response()
