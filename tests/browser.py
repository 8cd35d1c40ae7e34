"""A real browser for tests and pictures: headless Chromium, spoken to over its own DevTools protocol.

async with browser() as open_page:
    page = await open_page(url, width, height, dark=False)
    await page.evaluate("document.title");  await page.screenshot(path)
"""

import asyncio
import base64
import contextlib
import functools
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import aiohttp

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium on PATH: apt-get install chromium-headless-shell (or chromium) shows the page to these tests"
FLAGS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --remote-debugging-port=0"
START_S, ANSWER_S = 60, 60


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab; `errors` are those of its console and of its scripts."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse):
        self.socket, self.ids, self.answers, self.errors = socket, itertools.count(1), {}, []
        self.reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.socket:
            said = message.json()
            if said.get("id") in self.answers:
                self.answers.pop(said["id"]).set_result(said)
            if said.get("method") == "Runtime.exceptionThrown":
                self.errors.append(said["params"]["exceptionDetails"]["exception"]["description"])
            if said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.errors.append(said["params"]["entry"]["text"])

    async def call(self, method: str, **params):
        number = next(self.ids)
        self.answers[number] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": number, "method": method, "params": params})
        answer = await asyncio.wait_for(self.answers[number], ANSWER_S)
        assert "error" not in answer, answer
        return answer["result"]

    async def evaluate(self, script: str):
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Until `script` is true."""
        async with asyncio.timeout(ANSWER_S):
            while not await self.evaluate(script):
                await asyncio.sleep(0.05)

    async def screenshot(self, path: Path | str) -> None:
        """The whole page, as long as it is."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(shot["data"]))


@contextlib.asynccontextmanager
async def browser():
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        argv = [chromium(), *FLAGS.split(), f"--user-data-dir={profile}"]
        # a group of its own: what is on PATH may be a shell script, which would leave Chromium behind
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0) as process:
            try:
                port = Path(profile) / "DevToolsActivePort"  # written when it listens
                async with asyncio.timeout(START_S):
                    while not port.exists() or not port.read_text().count("\n"):
                        assert process.poll() is None, f"Chromium ended at its start, with {process.returncode}"
                        await asyncio.sleep(0.05)
                at = f"127.0.0.1:{port.read_text().split()[0]}"
                async with aiohttp.ClientSession() as http:
                    yield functools.partial(open_page, http, at)
            finally:
                os.killpg(process.pid, signal.SIGKILL)


async def open_page(
    http: aiohttp.ClientSession, at: str, url: str, width: int, height: int, dark: bool = False
) -> Page:
    async with http.put(f"http://{at}/json/new?about:blank") as answer:
        address = (await answer.json(content_type=None))["webSocketDebuggerUrl"]
    page = Page(await http.ws_connect(address, max_msg_size=0))
    for domain in ("Page", "Runtime", "Log"):
        await page.call(f"{domain}.enable")
    phone = width < 500
    await page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    await page.call("Emulation.setEmulatedMedia", features=[scheme])
    await page.call("Page.navigate", url=url)
    await page.until("document.readyState === 'complete'")
    return page
