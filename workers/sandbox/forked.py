"""One session's child as the fork server sees it: when it runs, what it has printed, how it ended.

    begin(code) ──▶ running ──its report─▶ SIGSTOP ──the kernel says so──▶ stopped ──begin(code)──▶ SIGCONT, running …
                       └── deadline, too much output, anything else said ──▶ SIGKILL: the variables are lost

A stopped process can neither compute nor print, whatever the code left behind; what it printed until then was its
call's. The next child will be a copy of this process's memory: so an episode's code and output live here only in
buffers of their own, and are overwritten as soon as they have been passed on.
"""

import math
import os
import signal
import socket
import time

from workers.sandbox import child
from workers.sandbox.confinement import Confinement

REPORTS = {child.DONE: None, child.EXCEPTION: "exception", child.OUTPUT: "output"}
HEAD = child.TOKEN + 4
EXITS = {child.MEMORY: "memory", child.REFUSED: "refused"}


class Forked:
    """lost: variables of an earlier child of this session are gone, and nobody has been told."""

    def __init__(self, session: int, confinement: Confinement, lost: bool):
        """Raises OSError when there are no descriptors left."""
        self.session, self.confinement, self.lost = session, confinement, lost
        self.text, self.length = bytearray(confinement.limits.output_bytes + 1), 0
        self.unsent = memoryview(b"")
        self.call: int | None = None
        self.error: str | None = None
        self.token, self.reported, self.killed = b"", False, False
        self.started, self.deadline, self.seconds = 0.0, math.inf, 0.0
        self.control, self.theirs = socket.socketpair()
        try:
            self.output, self.write_end = os.pipe()
        except OSError:
            self.control.close()
            self.theirs.close()
            raise
        self.control.setblocking(False)
        os.set_blocking(self.output, False)

    def fork(self, others: list["Forked"]) -> None:
        """Start the process. Raises OSError. others: whose text the child, a copy of this process, must not keep."""
        server = os.getpid()
        try:
            self.pid = os.fork()
            if self.pid == 0:
                for other in others:
                    other.forget()
                child.serve(self.theirs.fileno(), self.write_end, self.confinement, server)
        except OSError:
            self.close()
            raise
        finally:
            self.theirs.close()
            os.close(self.write_end)

    def begin(self, call: int, code: bytearray) -> None:
        """Run the next call. code: after HEAD free bytes; it is overwritten on its way."""
        limits = self.confinement.limits
        self.call, self.error, self.reported, self.token = call, None, False, os.urandom(child.TOKEN)
        code[:HEAD] = self.token + (len(code) - HEAD).to_bytes(4, "big")
        self.unsent = memoryview(code)
        self.started = time.monotonic()
        self.deadline = self.started + limits.seconds
        limits.grant_cpu(self.pid)
        os.kill(self.pid, signal.SIGCONT)

    def converse(self) -> None:
        """Send more of the code, and hear whether the call has ended."""
        try:
            if self.unsent:
                sent = self.control.send(self.unsent)
                self.unsent[:sent] = bytes(sent)
                self.unsent = self.unsent[sent:]
            said = self.control.recv(child.TOKEN + 2)
        except BlockingIOError:
            return
        except ConnectionError:
            said = b""
        token, how = said[: child.TOKEN], said[child.TOKEN :]
        if token == self.token and how in REPORTS and not (self.unsent or self.reported):
            self.reported, self.error = True, REPORTS[how]
            self.seconds, self.deadline = time.monotonic() - self.started, math.inf
            os.kill(self.pid, signal.SIGSTOP)
        else:  # nothing: it has closed its end, most likely by ending, and wait(2) will say how
            self.kill("crashed" if said else None)

    def listen(self) -> int | None:
        """Take some of what it has printed, up to one byte beyond the limit: how much, 0 at the end, None for now."""
        try:
            taken = os.readv(self.output, [memoryview(self.text)[self.length :]])
        except BlockingIOError:
            return None
        self.length += taken
        if self.length == len(self.text):
            self.kill("output")
        return taken

    def drain(self) -> None:
        while self.listen():
            pass

    def kill(self, error: str | None) -> None:
        """End it, unless that is under way; `error`: what to call that, None: whatever wait(2) says."""
        if not self.killed:
            self.killed, self.error, self.deadline = True, error, math.inf
            os.kill(self.pid, signal.SIGKILL)  # not reaped, so the pid is still its own

    def ended(self, status: int) -> None:
        """Note how it ended, unless that is known: `status` is what wait(2) says of it."""
        self.seconds = time.monotonic() - self.started
        if not self.killed or self.error is None:
            if os.WIFSIGNALED(status):
                self.error = "timeout" if os.WTERMSIG(status) == signal.SIGXCPU else "crashed"
            else:
                self.error = EXITS.get(os.WEXITSTATUS(status), "crashed")
        self.killed = self.lost = True

    def forget(self) -> None:
        self.unsent[:] = bytes(len(self.unsent))
        self.text[: self.length] = bytes(self.length)
        self.length = 0

    def close(self) -> None:
        self.control.close()
        os.close(self.output)
