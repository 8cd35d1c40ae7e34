"""The fork server: one small warm interpreter that forks a confined child per call and watches it.

    python -m workers.sandbox.server FD '{"limits": {…}, "modules": ["sympy"], "allow_unconfined": false}'

FD is one end of a socket pair. Messages both ways are a 4-byte big-endian length and JSON:
    server → worker   {"ready": true, "missing": […]} | {"unavailable": [code, message]}          once
    worker → server   {"id": 7, "code": "print(1)"}   run it          {"id": 7}   stop it
    server → worker   {"id": 7, "output": "1\\n", "error": null, "seconds": 0.003}
The server ends, and its children with it, when the other end of the socket is closed or the worker dies.
"""

import gc
import json
import os
import selectors
import signal
import sys
import time

from workers.sandbox import child, kernel, preload
from workers.sandbox.confinement import Confinement, prepare
from workers.sandbox.limits import Limits


class Running:
    """A child that has not been reaped yet."""

    def __init__(self, call: int, pid: int, output: int, seconds: float):
        self.call, self.pid, self.output = call, pid, output
        self.started = time.monotonic()
        self.deadline = self.started + seconds
        self.text = bytearray()
        self.error = None

    def stop(self, error: str) -> None:
        self.error = self.error or error
        os.kill(self.pid, signal.SIGKILL)  # not reaped, so the pid is still its own

    def read(self, most: int) -> bool:
        """Take some of what it has printed, up to one byte beyond `most`; False when there is nothing more to take."""
        piece = os.read(self.output, most + 1 - len(self.text))
        self.text += piece
        return bool(piece)


class ForkServer:
    def __init__(self, channel: int, confinement: Confinement):
        self.channel, self.confinement = channel, confinement
        self.pid = os.getpid()
        self.inbox = bytearray()
        self.running: dict[int, Running] = {}  # pid → child
        self.selector = selectors.DefaultSelector()
        self.selector.register(channel, selectors.EVENT_READ, self.receive)
        self.bell, ring = os.pipe()  # a child's end interrupts the wait below
        for end in (self.bell, ring):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        self.selector.register(self.bell, selectors.EVENT_READ, lambda: os.read(self.bell, 4096))

    def serve(self) -> None:
        """Run calls until the worker closes its end; then stop what still runs."""
        try:
            while True:
                nearest = min((one.deadline for one in self.running.values()), default=None)
                wait = None if nearest is None else max(0.0, nearest - time.monotonic())
                for key, _ in self.selector.select(wait):
                    key.data()
                self.reap()
                now = time.monotonic()
                for one in self.running.values():
                    if one.deadline <= now:
                        one.deadline = now + 1.0  # SIGKILL may take a moment under load: look again, do not spin
                        one.stop("timeout")
        except (EOFError, ConnectionError):  # the latter when an answer was on its way
            for one in self.running.values():
                one.stop("closed")
            for one in self.running.values():
                os.waitpid(one.pid, 0)

    def receive(self) -> None:
        before = len(self.inbox)
        self.inbox += os.read(self.channel, 1 << 16)
        if len(self.inbox) == before:
            raise EOFError
        while len(self.inbox) >= 4 and len(self.inbox) >= (end := 4 + int.from_bytes(self.inbox[:4], "big")):
            request = json.loads(self.inbox[4:end])
            del self.inbox[:end]
            if "code" in request:
                self.start(request["id"], request["code"])
            else:
                for one in self.running.values():
                    if one.call == request["id"]:
                        one.stop("cancelled")

    def start(self, call: int, code: str) -> None:
        output, write_end = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(output)
            os.close(write_end)
            send(self.channel, id=call, output=f"the sandbox could not fork: {error}", error="crashed", seconds=0.0)
            return
        if pid == 0:
            confinement, server = self.confinement, self.pid
            vars(self).clear()  # other episodes' code and output are none of its business
            child.run(code, write_end, confinement, server)
        os.close(write_end)
        os.set_blocking(output, False)
        one = self.running[pid] = Running(call, pid, output, self.confinement.limits.seconds)
        self.selector.register(output, selectors.EVENT_READ, lambda: self.listen(one))

    def listen(self, one: Running) -> None:
        more = one.read(self.confinement.limits.output_bytes)
        if len(one.text) > self.confinement.limits.output_bytes:
            one.stop("output")
            more = False
        if not more:  # closed by the child, or of no more interest: its end rings the bell
            self.selector.unregister(one.output)

    def reap(self) -> None:
        """Report every child that has ended."""
        while self.running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            one = self.running.pop(pid)
            seconds = time.monotonic() - one.started
            most = self.confinement.limits.output_bytes
            while one.read(most):
                pass
            if one.output in self.selector.get_map():
                self.selector.unregister(one.output)
            os.close(one.output)
            text, error = one.text.decode(errors="replace"), one.error or how_it_ended(status)
            if len(one.text) > most:
                text = one.text[:most].decode(errors="ignore") + f"\n[output truncated after {most} bytes]"
                error = one.error or "output"
            send(self.channel, id=one.call, output=text, error=error, seconds=seconds)


def how_it_ended(status: int) -> str | None:
    """The child's wait status in one word; None is a normal end."""
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) == signal.SIGXCPU else "crashed"
    words = {child.DONE: None, child.EXCEPTION: "exception", child.MEMORY: "memory", child.REFUSED: "refused"}
    return words.get(os.WEXITSTATUS(status), "crashed")


def send(channel: int, **message) -> None:
    body = json.dumps(message).encode()
    data = memoryview(len(body).to_bytes(4, "big") + body)
    while data:
        data = data[os.write(channel, data) :]


PROBE = """
import os
for escape in (lambda: os.listdir("/"), os.fork, lambda: os.kill(os.getppid(), 0)):
    try:
        escape()
    except PermissionError:
        continue
    print("not confined")
    os._exit(0)
print("confined")
"""


def probe(confinement: Confinement) -> str:
    """Run one call that tries to escape, and return what it printed: "confined" when every layer holds."""
    output, write_end = os.pipe()
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        child.run(PROBE, write_end, confinement, server)
    os.close(write_end)
    with open(output) as file:
        text = file.read().strip()
    os.waitpid(pid, 0)
    return text


def main(channel: int, limits: dict, modules: list[str], allow_unconfined: bool) -> None:
    worker = os.getppid()
    kernel.die_with_parent(worker)
    try:
        library, packages = preload.standard_library(), preload.packages(modules)
    except ImportError as error:
        found = f"environment.tool_preload: {error}; install it, or take it out of the list"
        send(channel, unavailable=["PRELOAD", found])
        return
    os.environ.clear()
    confinement, missing = prepare(Limits(**limits), library.files + packages.files, library.folders)
    preload.nothing_else()
    if not missing and (found := probe(confinement)) != "confined":
        missing.append(
            ("ESCAPED", f"a kernel whose confinement holds (a trial call answered {found!r}): run on Linux itself")
        )
    if missing and not allow_unconfined:
        lacks = "; ".join(text for _, text in missing)
        found = (
            f"the Python tool runs only confined, and this machine lacks {lacks}; or set "
            "environment.allow_unconfined = true to run a model's code with resource limits only"
        )
        send(channel, unavailable=[missing[0][0], found])
        return
    server = ForkServer(channel, confinement)
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every page it shares with this process
    gc.disable()
    send(channel, ready=True, missing=[text for _, text in missing])
    server.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), **json.loads(sys.argv[2]))
