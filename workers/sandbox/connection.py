"""The worker's end of one fork server: starts the process, sends it calls, hands every answer to whom it belongs."""

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
from typing import Any

from pipeline.errors import Coded
from workers.sandbox import bubblewrap
from workers.sandbox.limits import Limits

log = logging.getLogger(__name__)

START_SECONDS = 60.0  # importing the standard library on a machine that is busy starting engines
PROBE_SESSION = 0
LAYERS_OF_THE_KERNEL = ("LANDLOCK", "SECCOMP")
NOBODY = 65534

# It ends its process, so that nothing is left of it when the server is ready.
PROBE = """
import os
for escape in ESCAPES:
    try:
        escape()
    except OSError:
        continue
    print("not confined")
    break
else:
    print("confined")
os._exit(0)
"""
ESCAPES = ["lambda: open('/etc/passwd')", "os.fork"]
SIGNAL = "lambda: os.kill(os.getppid(), 0)"  # bubblewrap alone lets sessions signal each other


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


class ForkServer:
    """One fork server process and the calls that wait for its answers."""

    def __init__(self, process: subprocess.Popen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.process, self.reader, self.writer = process, reader, writer
        self.waiting: dict[int, asyncio.Future] = {}
        self.calls = 0
        self.listener: asyncio.Task | None = None
        self.confinement = ""

    @classmethod
    async def start(cls, limits: Limits, modules: Sequence[str], allow_unconfined: bool) -> "ForkServer":
        """Start the process and wait until it is ready; raises ServerDied, OSError or SandboxUnavailable."""
        try:
            return await cls.launch(limits, modules)
        except SandboxUnavailable as error:
            if error.code not in LAYERS_OF_THE_KERNEL:
                raise
            lacking = error
        if within := bubblewrap.command():
            # Without seccomp it is a limit that forbids to fork, and none of those binds root.
            user = NOBODY if lacking.code == "SECCOMP" and os.geteuid() == 0 else None
            try:
                return await cls.launch(limits, modules, within, user)
            except (ServerDied, OSError, SandboxUnavailable) as error:
                log.warning("bubblewrap is installed, and cannot confine the Python tool here: %s", error)
        if not allow_unconfined:
            raise lacking
        return await cls.launch(limits, modules, unconfined=True)

    @classmethod
    async def launch(
        cls,
        limits: Limits,
        modules: Sequence[str],
        within: Sequence[str] = (),
        user: int | None = None,
        unconfined: bool = False,
    ) -> "ForkServer":
        """Start it in one way: by itself with every layer, `within` bubblewrap as `user`, or unconfined."""
        every_layer = not (within or unconfined)
        settings = {"limits": dataclasses.asdict(limits), "modules": modules, "every_layer": every_layer}
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "workers.sandbox.server", str(theirs.fileno()), json.dumps(settings)]
            try:
                process = subprocess.Popen(
                    [*within, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=environment(),
                    cwd="/",
                    start_new_session=True,  # Ctrl-C and the supervisor's signals are the worker's, which drains first
                    user=user,
                    group=user,
                    extra_groups=None if user is None else [],
                )
            except OSError:
                ours.close()
                raise
        server = cls(process, *await asyncio.open_unix_connection(sock=ours))
        try:
            async with asyncio.timeout(START_SECONDS):
                hello, _ = await server.receive()
                if "unavailable" in hello:
                    raise SandboxUnavailable(*hello["unavailable"])
                server.listener = asyncio.create_task(server.listen())
                server.confinement = " and ".join((["bubblewrap"] if within else []) + hello["layers"])
                for path in hello["hidden"]:
                    log.warning("nobody cannot read %s: the Python tool has only what is imported already", path)
                if unconfined:
                    log.warning("the Python tool runs a model's code UNCONFINED; missing: %s", hello["missing"])
                else:
                    await server.try_to_escape(ESCAPES + [SIGNAL] * bool(hello["layers"]))
                if within:
                    log.warning("the Python tool is confined by %s; missing: %s", server.confinement, hello["missing"])
        except BaseException:
            await server.close()
            raise
        return server

    async def try_to_escape(self, escapes: Sequence[str]) -> None:
        """Raises SandboxUnavailable unless the kernel refuses every one."""
        result = await self.call(PROBE_SESSION, PROBE.replace("ESCAPES", f"({', '.join(escapes)})"), START_SECONDS)
        if result.output != "confined\n":
            raise SandboxUnavailable(
                "ESCAPED", f"the kernel's confinement does not hold (a trial call gave {result}): run on Linux itself"
            )

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


def environment() -> dict[str, str]:
    """The fork server's environment: nothing of the worker's, which may hold secrets, but where to find libraries."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
    root = str(Path(__file__).resolve().parents[2])
    # Libraries of linear algebra start a thread per CPU when they are imported, unless told not to.
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **one_thread, "PATH": os.defpath, "LC_ALL": "C.UTF-8", "PYTHONPATH": root, "PYTHONSAFEPATH": "1"}
