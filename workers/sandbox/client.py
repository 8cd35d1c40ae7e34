"""The worker's side of the Python tool: sessions, whose calls take turns; another fork server when one dies."""

import asyncio
import dataclasses
import itertools
import logging
import os
from collections.abc import Sequence

from workers.sandbox import launch
from workers.sandbox.connection import Connection, SandboxUnavailable, ServerDied, ToolResult
from workers.sandbox.limits import Limits

log = logging.getLogger(__name__)

GRACE_SECONDS = 30.0  # beyond a call's own limit, before its server counts as stuck
DEATHS_IN_A_ROW = 3


class PythonSandbox:
    """Runs untrusted Python in sessions, at most `concurrency` calls at once; the others wait their turn.

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
        self.places = asyncio.Semaphore(concurrency or len(os.sched_getaffinity(0)))
        self._numbers = itertools.count(1)
        self._starting = asyncio.Lock()
        self._server: Connection | None = None
        self._deaths = 0  # since the last answer
        self._closed = False

    async def __aenter__(self) -> "PythonSandbox":
        await self.start()
        return self

    async def __aexit__(self, *exception) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the fork server; raises SandboxUnavailable when this machine cannot confine the code."""
        await self.server()

    def session(self) -> "Session":
        """Variables, imports and functions of one call are there in the next; nothing is started before the first."""
        return Session(self, next(self._numbers))

    @property
    def confinement(self) -> str:
        """What confines the code, in words; empty before the start."""
        return self._server.confinement if self._server else ""

    async def close(self) -> None:
        """Stop every session and the fork server; later calls raise SandboxUnavailable("CLOSED")."""
        self._closed = True
        async with self._starting:
            if self._server:
                await self._server.close()
                self._server = None

    async def server(self) -> Connection:
        """The living fork server. Raises SandboxUnavailable when it keeps dying."""
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
                    self._server = await launch.start(self.limits, self.preload, self.allow_unconfined)
                    return self._server
                except (ServerDied, OSError) as error:  # a TimeoutError is an OSError
                    log.warning("the sandbox's fork server did not start: %s", error)
                    self._deaths += 1
            raise self.keeps_dying(self._deaths)

    @staticmethod
    def keeps_dying(times: int) -> SandboxUnavailable:
        return SandboxUnavailable(
            "SERVER",
            f"the sandbox's fork server died {times} times without an answer; free memory and process slots on this "
            "machine, look at its error on stderr above, then start the worker again",
        )

    def answered(self) -> None:
        self._deaths = 0


class Session:
    """One episode's Python: a confined process of its own, made at the first call and stopped between calls.

    A call that ends the process (a timeout, too much memory, a crash) loses all variables, and says so; the next one
    begins anew. Calls of one session wait for each other.
    """

    def __init__(self, sandbox: PythonSandbox, number: int):
        self._sandbox, self._number = sandbox, number
        self._turn = asyncio.Lock()
        self._closed = self._interrupted = False
        self._server: Connection | None = None  # the one that has this session's variables

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, *exception) -> None:
        await self.close()

    async def run(self, code: str) -> ToolResult:
        """Run `code`. Raises SandboxUnavailable: what failed then is the tool, and not the code."""
        async with self._turn:
            if self._closed:
                raise SandboxUnavailable("CLOSED", "this session is closed: begin another one to run code")
            async with self._sandbox.places:
                result = None if self._closed else await self._call(code)
        if self._closed:
            await self.close()  # again: what this call has taken meanwhile
            raise SandboxUnavailable("CLOSED", "this session was closed while its call waited or ran")
        if result.error == "refused":
            raise SandboxUnavailable("REFUSED", f"{result.output}; free process slots and memory on this machine")
        return result

    async def close(self) -> None:
        """End the process, and with it whatever call still runs."""
        self._closed = True
        if self._server:
            self._server.end(self._number)
            self._server = None

    async def _call(self, code: str) -> ToolResult:
        for _ in range(DEATHS_IN_A_ROW):
            server, before = await self._sandbox.server(), self._server
            if before not in (None, server):
                break  # it has died between two calls
            self._server = server
            try:
                result = await server.call(self._number, code, self._sandbox.limits.seconds + GRACE_SECONDS)
            except ServerDied:
                self._server = None
                if before:
                    break
                continue  # nothing was kept yet, and confined code has no effects: it can simply be run again
            except asyncio.CancelledError:
                self._server, self._interrupted = None, True
                raise
            self._sandbox.answered()
            if result.state_lost:
                self._server = None
            if self._interrupted:
                result, self._interrupted = dataclasses.replace(result, state_lost=True), False
            return result
        else:
            raise self._sandbox.keeps_dying(DEATHS_IN_A_ROW)
        self._server = None
        raise SandboxUnavailable(
            "LOST", "the fork server ended, and with it the variables of this session: begin the episode again"
        )
