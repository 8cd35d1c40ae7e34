"""The worker's side of the Python tool: queues calls, talks to the fork server, starts another when it dies."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import Coded
from workers.sandbox.limits import Limits

log = logging.getLogger(__name__)

START_SECONDS = 60.0  # importing the standard library on a machine that is busy starting engines
GRACE_SECONDS = 30.0  # beyond a call's own limit, before its server counts as stuck
DEATHS_IN_A_ROW = 3


@dataclasses.dataclass(frozen=True)
class ToolResult:
    """What one call gave back.

    output: stdout and stderr as the code printed them, then the last line of a traceback; at most `output_bytes`, and a
        marker where it was cut.
    error: None | "exception" | "timeout" | "memory" | "output" | "crashed" (a signal, or an unknown exit status) |
        "refused" (this one child could not be confined, so its code was not run).
    seconds: wall-clock time of the child.
    """

    output: str
    error: str | None
    seconds: float


class SandboxUnavailable(Coded, RuntimeError):
    """The tool cannot run.

    code: LANDLOCK | SECCOMP | LIBSECCOMP (this machine lacks it), ESCAPED (a trial call did), PRELOAD (a module cannot
        be imported), SERVER (it dies), CLOSED.
    """


class ServerDied(Exception):
    """The fork server ended while a call was waiting for it."""


class ForkServer:
    """One fork server process and the calls that wait for its answers."""

    def __init__(self, process: subprocess.Popen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.process, self.reader, self.writer = process, reader, writer
        self.waiting: dict[int, asyncio.Future] = {}
        self.calls = 0
        self.listener = None

    @classmethod
    async def start(cls, limits: Limits, modules: Sequence[str], allow_unconfined: bool) -> "ForkServer":
        """Start the process and wait until it is ready; raises ServerDied, OSError or SandboxUnavailable."""
        settings = {"limits": dataclasses.asdict(limits), "modules": modules, "allow_unconfined": allow_unconfined}
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "workers.sandbox.server", str(theirs.fileno()), json.dumps(settings)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=environment(),
                    cwd="/",
                    start_new_session=True,  # Ctrl-C and the supervisor's signals are the worker's, which drains first
                )
            except OSError:
                ours.close()
                raise
        server = cls(process, *await asyncio.open_unix_connection(sock=ours))
        try:
            async with asyncio.timeout(START_SECONDS):
                hello = await server.receive()
        except BaseException:
            await server.close()
            raise
        if "unavailable" in hello:
            await server.close()
            raise SandboxUnavailable(*hello["unavailable"])
        if hello["missing"]:
            log.warning("the Python tool runs a model's code UNCONFINED; missing: %s", "; ".join(hello["missing"]))
        server.listener = asyncio.create_task(server.listen())
        return server

    async def receive(self) -> dict:
        try:
            length = int.from_bytes(await self.reader.readexactly(4), "big")
            return json.loads(await self.reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ServerDied("it ended") from None

    async def listen(self) -> None:
        """Hand every answer to the call that waits for it, until the server ends."""
        try:
            while True:
                answer = await self.receive()
                future = self.waiting.pop(answer.pop("id"), None)
                if future and not future.done():  # a cancelled call's answer has nobody waiting
                    future.set_result(ToolResult(**answer))
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

    def send(self, message: dict) -> None:
        body = json.dumps(message).encode()
        self.writer.write(len(body).to_bytes(4, "big") + body)

    async def call(self, code: str, within: float) -> ToolResult:
        """Run `code`; raises ServerDied when no answer can come any more."""
        self.calls += 1
        call = self.calls
        future = self.waiting[call] = asyncio.get_running_loop().create_future()
        self.send({"id": call, "code": code})
        try:
            async with asyncio.timeout(within):
                return await future
        except TimeoutError:
            self.process.kill()  # stuck or stopped: the other calls learn it from the closed socket
            raise ServerDied from None
        except asyncio.CancelledError:
            if self.waiting.pop(call, None) and self.alive:
                self.send({"id": call})  # stop the child too: its place belongs to the next call
            raise

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


class PythonSandbox:
    """Runs untrusted Python, at most `concurrency` calls at once; the others wait their turn.

    limits: of each call. concurrency: running children, by default one per CPU. allow_unconfined: where the kernel or
    libseccomp is missing, run with what is left (resource limits) and log a warning, instead of refusing to start.
    preload: modules outside the standard library that code may import.
    """

    def __init__(
        self,
        limits: Limits,
        concurrency: int | None = None,
        allow_unconfined: bool = False,
        preload: Sequence[str] = (),
    ):
        self.limits, self.allow_unconfined, self.preload = limits, allow_unconfined, preload
        self._places = asyncio.Semaphore(concurrency or len(os.sched_getaffinity(0)))
        self._starting = asyncio.Lock()
        self._server: ForkServer | None = None
        self._deaths = 0  # since the last answer
        self._closed = False

    async def __aenter__(self) -> "PythonSandbox":
        await self.start()
        return self

    async def __aexit__(self, *exception) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the fork server; raises SandboxUnavailable when this machine cannot confine the code."""
        await self._living()

    async def run(self, code: str) -> ToolResult:
        """Run `code` in a fresh confined process. Raises SandboxUnavailable when the fork server keeps dying."""
        async with self._places:
            for _ in range(DEATHS_IN_A_ROW):
                server = await self._living()
                try:
                    result = await server.call(code, self.limits.seconds + GRACE_SECONDS)
                except ServerDied:
                    continue  # confined code has no effects, so it can simply be run again
                self._deaths = 0
                return result
            raise self._keeps_dying(DEATHS_IN_A_ROW)

    async def close(self) -> None:
        """Stop every running call and the fork server; later calls raise SandboxUnavailable("CLOSED")."""
        self._closed = True
        async with self._starting:
            if self._server:
                await self._server.close()
                self._server = None

    async def _living(self) -> ForkServer:
        async with self._starting:
            if self._closed:
                raise SandboxUnavailable("CLOSED", "the sandbox is closed: start a new one to run code")
            if self._server and self._server.alive:
                return self._server
            if self._server:
                self._deaths += 1
                await self._server.close()
                log.warning("the sandbox's fork server ended (%d); starting another", self._server.process.returncode)
                self._server = None
            while self._deaths < DEATHS_IN_A_ROW:
                try:
                    self._server = await ForkServer.start(self.limits, self.preload, self.allow_unconfined)
                    return self._server
                except (ServerDied, OSError) as error:  # a TimeoutError is an OSError
                    log.warning("the sandbox's fork server did not start: %s", error)
                    self._deaths += 1
            raise self._keeps_dying(self._deaths)

    @staticmethod
    def _keeps_dying(times: int) -> SandboxUnavailable:
        return SandboxUnavailable(
            "SERVER",
            f"the sandbox's fork server died {times} times without an answer; free memory and process slots on this "
            "machine, look at its error on stderr above, then start the worker again",
        )


def environment() -> dict[str, str]:
    """The fork server's environment: nothing of the worker's, which may hold secrets, but where to find libraries."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
    root = str(Path(__file__).resolve().parents[2])
    # Libraries of linear algebra start a thread per CPU when they are imported, unless told not to.
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **one_thread, "PATH": os.defpath, "LC_ALL": "C.UTF-8", "PYTHONPATH": root, "PYTHONSAFEPATH": "1"}
