"""The worker's end of one fork server: sends it calls, hands every answer to whom it belongs. launch.py makes it."""

import asyncio
import contextlib
import dataclasses
import json
import signal
import subprocess
from typing import Any

from pipeline.errors import Coded


@dataclasses.dataclass(frozen=True)
class ToolResult:
    """What one call gave back.

    output: stdout and stderr as the code printed them, then the value of a last line that is an expression, or the last
        line of a traceback; at most `output_bytes`, and a marker where it was cut.
    error: None | "exception" | "timeout" | "memory" | "output" (there was more) | "crashed" (the process ended).
    seconds: wall-clock time of the call.
    state_lost: the session's variables are gone, with what ended this call, or since the one before.
    """

    output: str
    error: str | None
    seconds: float
    state_lost: bool


class SandboxUnavailable(Coded, RuntimeError):
    """The tool cannot run.

    code: LANDLOCK | SECCOMP | LIBSECCOMP (this machine lacks it), ESCAPED (a trial call did), PRELOAD (a module cannot
        be imported), REFUSED (a child could not be made or confined), LOST (a session's variables are, and its code is
        not to blame), SERVER (it dies), CLOSED.
    """


class ServerDied(Exception):
    """The fork server ended while a call was waiting for it."""


class Connection:
    """One fork server process and the calls that wait for its answers."""

    def __init__(self, process: subprocess.Popen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.process, self.reader, self.writer = process, reader, writer
        self.waiting: dict[int, asyncio.Future] = {}
        self.calls = 0
        self.listener: asyncio.Task | None = None
        self.confinement = ""

    async def receive(self) -> tuple[dict[str, Any], bytes]:
        try:
            length = int.from_bytes(await self.reader.readexactly(4), "big")
            message = json.loads(await self.reader.readexactly(length))
            return message, await self.reader.readexactly(message["bytes"])
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ServerDied("it ended") from None

    async def listen(self) -> None:
        """Hand every answer to the call that waits for it, until the server ends."""
        try:
            while True:
                answer, output = await self.receive()
                future = self.waiting.pop(answer["call"], None)
                if future and not future.done():  # a cancelled call's answer has nobody waiting
                    future.set_result(result_of(answer, output))
        except ServerDied:
            pass
        finally:
            for future in self.waiting.values():
                if not future.done():
                    future.set_exception(ServerDied())
            self.waiting.clear()

    @property
    def alive(self) -> bool:
        return not self.listener.done()

    def send(self, body: bytes = b"", **message) -> None:
        if self.alive:
            head = json.dumps(message | {"bytes": len(body)}).encode()
            self.writer.write(len(head).to_bytes(4, "big") + head + body)

    async def call(self, session: int, code: str, within: float) -> ToolResult:
        """Run `code` in a session; raises ServerDied when no answer can come any more."""
        self.calls += 1
        call = self.calls
        future = self.waiting[call] = asyncio.get_running_loop().create_future()
        self.send(code.encode("utf-8", "surrogatepass"), session=session, call=call)
        try:
            async with asyncio.timeout(within):
                return await future
        except TimeoutError:
            self.process.kill()  # stuck or stopped: the other calls learn it from the closed socket
            raise ServerDied from None
        except asyncio.CancelledError:
            self.end(session)
            raise

    def end(self, session: int) -> None:
        """Kill a session's child, if it has one; a call that still waits is answered."""
        self.send(session=session)

    async def close(self) -> None:
        """Close the socket, upon which the server stops its children and ends; kill it if it does not."""
        if self.listener:
            self.listener.cancel()
            await asyncio.wait([self.listener])
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
        for attempt in range(500):
            if self.process.poll() is not None:
                break
            if attempt == 400:
                self.process.send_signal(signal.SIGKILL)
            await asyncio.sleep(0.01)


def result_of(answer: dict[str, Any], output: bytes) -> ToolResult:
    text = output.decode(errors="ignore" if answer["cut"] else "replace")
    if answer["cut"]:
        text += f"\n[output truncated after {len(output)} bytes]"
    return ToolResult(text, answer["error"], answer["seconds"], answer["lost"])
