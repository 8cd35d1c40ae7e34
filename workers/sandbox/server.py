"""The fork server: one small warm interpreter that forks a confined child per session and watches it.

    python -m workers.sandbox.server FD '{"limits": {…}, "modules": ["sympy"], "every_layer": true}'

FD is one end of a socket pair. A message is a 4-byte big-endian length, JSON, and as many bytes as its "bytes" says:
    server → worker   {"layers": […], "missing": "…", "hidden": […]} | {"unavailable": [code, message]}            once
    worker → server   {"session": 3, "call": 7, "bytes": 8} print(1)      run it, in a new child if there is none
    server → worker   {"call": 7, "error": null, "lost": false, "seconds": 0.003, "cut": false, "bytes": 2} 1\\n
    worker → server   {"session": 3}                                      kill its child
The server ends, and its children with it, when the other end of the socket is closed or the worker dies.
"""

import gc
import json
import os
import resource
import selectors
import signal
import sys
import time

from workers.sandbox import kernel, preload, privileges
from workers.sandbox.confinement import Confinement, prepare
from workers.sandbox.forked import HEAD, Forked
from workers.sandbox.limits import Limits


class ForkServer:
    def __init__(self, channel: int, confinement: Confinement):
        self.channel, self.confinement = channel, confinement
        self.sessions: dict[int, Forked] = {}
        self.children: dict[int, Forked] = {}  # pid → child that has not been reaped
        self.selector = selectors.DefaultSelector()
        self.selector.register(channel, selectors.EVENT_READ, self.receive)
        self.bell, ring = os.pipe()  # a child that stops or ends interrupts the wait below
        for end in (self.bell, ring):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        self.selector.register(self.bell, selectors.EVENT_READ, lambda: os.read(self.bell, 4096))

    def serve(self) -> None:
        """Run calls until the worker closes its end; then stop what is left."""
        try:
            while True:
                nearest = min((one.deadline for one in self.children.values()), default=float("inf"))
                wait = max(0.0, nearest - time.monotonic()) if nearest < float("inf") else None
                for key, _ in self.selector.select(wait):
                    key.data()
                self.wait()
                now = time.monotonic()
                for one in self.children.values():
                    if one.deadline <= now:
                        one.kill("timeout")
        except (EOFError, ConnectionError):  # the latter when an answer was on its way
            for one in self.children.values():
                one.kill("closed")
            for pid in self.children:
                os.waitpid(pid, 0)

    def receive(self) -> None:
        """Take one message. The worker is trusted: what it has begun to send comes whole."""
        size = bytearray(4)
        read(self.channel, size)
        body = bytearray(int.from_bytes(size, "big"))
        read(self.channel, body)
        message = json.loads(body)
        session = message["session"]
        if "call" in message:
            code = bytearray(HEAD + message["bytes"])
            read(self.channel, memoryview(code)[HEAD:])
            self.run(session, message["call"], code)
        elif one := self.sessions.pop(session, None):
            one.kill("crashed")

    def run(self, session: int, call: int, code: bytearray) -> None:
        one = self.sessions.get(session)
        if one is None or one.killed:
            try:
                one = self.start(session, lost=one is not None)
            except OSError as error:
                code[:] = bytes(len(code))
                text = f"the sandbox could not fork: {error}".encode()
                send(self.channel, text, call=call, error="refused", lost=True, seconds=0.0, cut=False)
                return
        one.begin(call, code)
        self.converse(one)

    def start(self, session: int, lost: bool) -> Forked:
        one = Forked(session, self.confinement, lost)
        one.fork(list(self.children.values()))
        self.sessions[session] = self.children[one.pid] = one
        self.selector.register(one.output, selectors.EVENT_READ, lambda: self.listen(one))
        self.selector.register(one.control, selectors.EVENT_READ, lambda: self.converse(one))
        return one

    def converse(self, one: Forked) -> None:
        one.converse()
        if one.killed:
            self.unwatch(one.control)
        else:
            write = selectors.EVENT_WRITE if one.unsent else 0
            self.selector.modify(one.control, selectors.EVENT_READ | write, lambda: self.converse(one))

    def listen(self, one: Forked) -> None:
        if one.listen() == 0:  # closed by the child, or of no more interest: its end rings the bell
            self.unwatch(one.output)

    def unwatch(self, what: object) -> None:
        if what in self.selector.get_map():
            self.selector.unregister(what)

    def wait(self) -> None:
        """Take note of every child that has stopped or ended, and answer the calls that did."""
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            one = self.children[pid]
            if os.WIFSTOPPED(status):
                one.drain()
                if one.reported and not one.killed:
                    self.answer(one)
                continue
            one.ended(status)
            one.drain()
            del self.children[pid]
            self.unwatch(one.control)
            self.unwatch(one.output)
            if one.call is not None:
                self.answer(one)
                if self.sessions.get(one.session) is one:  # else it stays: the session's next call is told of its end
                    del self.sessions[one.session]
            one.close()

    def answer(self, one: Forked) -> None:
        cut = one.error == "output" or one.length == len(one.text)
        text = memoryview(one.text)[: min(one.length, self.confinement.limits.output_bytes)]
        send(self.channel, text, call=one.call, error=one.error, lost=one.lost, seconds=one.seconds, cut=cut)
        one.forget()
        one.call, one.lost = None, False


def read(channel: int, into: bytearray | memoryview) -> None:
    """Fill `into`, with no copy that would stay behind in this process's memory. Raises EOFError."""
    rest = memoryview(into)
    while rest:
        taken = os.readv(channel, [rest])
        if taken == 0:
            raise EOFError
        rest = rest[taken:]


def send(channel: int, text: bytes | memoryview = b"", **message) -> None:
    body = json.dumps(message | {"bytes": len(text)}).encode()
    for part in (len(body).to_bytes(4, "big") + body, text):
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(channel, rest) :]


def main(channel: int, limits: dict, modules: list[str], every_layer: bool) -> None:
    worker = os.getppid()
    kernel.die_with_parent(worker)
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # where memory runs out, a session's process goes first, before engines and trainers
    try:
        library, packages = preload.standard_library(), preload.packages(modules)
    except ImportError as error:
        found = f"environment.tool_preload: {error}; install it, or take it out of the list"
        send(channel, unavailable=["PRELOAD", found])
        return
    os.environ.clear()
    confinement, missing = prepare(Limits(**limits), library.files + packages.files, library.folders)
    preload.nothing_else()
    privileges.drop()
    kernel.die_with_parent(worker)  # again: the kernel forgets it when the user changes
    lacks = "; ".join(text for _, text in missing)
    if missing and every_layer:
        found = (
            f"the Python tool runs only confined, and this machine lacks {lacks}; or install bubblewrap, or set "
            "environment.allow_unconfined = true to run a model's code with resource limits only"
        )
        send(channel, unavailable=[missing[0][0], found])
        return
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))  # two for each session
    server = ForkServer(channel, confinement)
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every page it shares with this process
    gc.disable()
    hidden = [path for path in library.folders + packages.files if not os.access(path, os.R_OK)]
    send(channel, layers=confinement.layers, missing=lacks, hidden=hidden)
    server.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), **json.loads(sys.argv[2]))
