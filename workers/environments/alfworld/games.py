"""The worker's end of its games: one server for all of them (server.py), one process for each.

    games = Games();  game = await games.begin(path, seed) ─▶ await game.step(command) ─▶ … ─▶ game.end()
                                        └─ Seen: what the player reads, whether it has won, what the expert would do

Waiting is bounded by environment.setup_timeout_s and step_timeout_s, which cut these calls off. A process that dies, of
the kernel or by a person, closes its socket: GameLost, the episode's failure, and never a hang.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from workers.sandbox.launch import environment

SEND_S = 10.0  # to hand the server a request: it reads none while it translates a game, and some dozens fit


class GameLost(Exception):
    """The process of a game ended, or it could not be begun: no reward, and the episode's failure."""


class Seen(NamedTuple):
    """advice: the expert's command now; None: it has none."""

    text: str
    won: bool
    advice: str | None


class Game:
    """One game that goes on."""

    def __init__(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.path, self._reader, self._writer = path, reader, writer
        self.pid: int | None = None
        self._process: int | None = None  # a descriptor of it, which no other process can take over

    async def first(self) -> Seen:
        answer = await self._answer()
        self.pid = answer.pop("pid")
        self._process = os.pidfd_open(self.pid)
        return Seen(**answer)

    async def step(self, command: str) -> Seen:
        """Raises GameLost."""
        self._writer.write(json.dumps(command).encode() + b"\n")
        return Seen(**await self._answer())

    async def _answer(self) -> dict:
        try:
            answer = json.loads(await self._reader.readline() or b"{}")
        except ConnectionError:
            answer = {}
        if not answer or "error" in answer:
            found = answer.get("error", "its process ended without an answer; was it killed, for want of memory?")
            raise GameLost(f"{self.path}: {found}")
        return answer

    def end(self) -> None:
        """End its process, whatever it does."""
        self._writer.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            os.close(self._process)
            self._process = None


class Games:
    """Begins games; another server takes the place of one that has ended."""

    def __init__(self):
        self._server: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._sender = ThreadPoolExecutor(1)  # its own: the loop's threads renew leases, and must not wait behind it

    async def begin(self, path: str, seed: int) -> tuple[Game, Seen]:
        """The game and its first words. Raises GameLost."""
        ours, theirs = socket.socketpair()
        game = None
        try:
            sending = self._sender.submit(self._send, json.dumps({"path": path, "seed": seed}).encode(), theirs)
            sending.add_done_callback(lambda _: theirs.close())  # even if it was given up before its turn
            await asyncio.wrap_future(sending)
            game = Game(path, *await asyncio.open_unix_connection(sock=ours, limit=1 << 20))
            return game, await game.first()
        except BaseException as error:
            game.end() if game else ours.close()
            if isinstance(error, OSError):
                raise GameLost(f"{path}: the process that begins games does not answer: {error}") from None
            raise

    def _send(self, request: bytes, end: socket.socket) -> None:
        if self._server is None or self._server.poll() is not None:
            self._end()
            self._start()
        socket.send_fds(self._control, [request], [end.fileno()])

    def _start(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(SEND_S)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "workers.environments.alfworld.server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment(),
                start_new_session=True,  # Ctrl-C and the supervisor's signals are the worker's, which drains first
            )

    def close(self) -> None:
        """End the server; games that go on are ended by their own."""
        if self._server is not None:
            self._server.kill()  # no request waits for it any longer
        self._sender.shutdown(cancel_futures=True)
        self._end()

    def _end(self) -> None:
        if self._server is not None:
            self._control.close()
            self._server.kill()
            self._server.wait()
            self._server = None
