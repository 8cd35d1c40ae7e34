"""The forked child of one session: confine this process, then run call after call in one namespace.

    fd 0  nothing to read        fd 1, 2  what the code prints, to the fork server
    fd 3  the server's end: a call comes as TOKEN bytes, 4 bytes of length and its code; the answer is the token and how
          it ended: DONE | EXCEPTION | OUTPUT

What cannot leave the variables whole ends the process, and its exit status says why: MEMORY | REFUSED | other. The code
is not trusted, and it shares this process: so whatever is said on a descriptor, or by the exit status, can mislead only
about this session. Time, output and the process's end are watched from outside, by the fork server; while no call runs
it has the process stopped.
"""

import ast
import gc
import io
import os
import signal
import sys
import traceback
import types
from typing import Any, NoReturn

from workers.sandbox.confinement import CONTROL, Confinement

DONE, EXCEPTION, OUTPUT = b"\0", b"\1", b"\2"
CRASHED, MEMORY, REFUSED = 70, 75, 76
TOKEN = 8  # another one for every call: what is said too early, or twice, is not taken for the end of a later one

TIMERS = {
    signal.ITIMER_REAL: signal.SIGALRM,
    signal.ITIMER_VIRTUAL: signal.SIGVTALRM,
    signal.ITIMER_PROF: signal.SIGPROF,
}


class OutputFull(BaseException):
    """The call has printed more than it may: no Exception, for a loop that catches those must end as well."""


def serve(control: int, output: int, confinement: Confinement, server: int) -> NoReturn:
    """Become the process that runs a session's calls, one by one; never returns."""
    status = REFUSED
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            confinement.apply(server, control)
        except OSError as error:
            os.write(1, f"the sandbox could not confine the code: {error}".encode())
        else:
            status = CRASHED
            reseed()
            gc.enable()
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            while True:
                token, code = receive()
                os.write(CONTROL, token + execute(code, main.__dict__, confinement.limits.output_bytes))
    except MemoryError:
        status = MEMORY
    finally:
        os._exit(status)  # whatever happened: this process must never return into the server's loop


def reseed() -> None:
    """`random` does it by itself; numpy's global generator would be the same in every session."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def receive() -> tuple[bytes, str]:
    """The next call's token and code; ends the process when there will be none."""
    token, size = _exactly(TOKEN), int.from_bytes(_exactly(4), "big")
    return token, _exactly(size).decode("utf-8", "surrogatepass")


def _exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(CONTROL, size - len(data))
        if not piece:
            os._exit(CRASHED)
        data += piece
    return data


def execute(code: str, namespace: dict[str, Any], most: int) -> bytes:
    """Run `code`; an uncaught exception is printed as the last line of Python's traceback. Raises MemoryError."""
    stream = Output.stream(most)
    sys.stdin = sys.__stdin__ = io.StringIO()  # new, because exit() closes it
    sys.stdout = sys.__stdout__ = sys.stderr = sys.__stderr__ = stream  # one stream: the order of prints is kept
    try:
        try:
            status = _run(code, namespace, stream)
        finally:
            be_quiet()
        if not stream.closed:
            stream.flush()
    except OutputFull:
        status = OUTPUT
    except MemoryError:
        os.write(1, b"MemoryError\n")
        raise
    return status


def _run(code: str, namespace: dict[str, Any], stream: io.TextIOWrapper) -> bytes:
    try:
        tree = ast.parse(code, "<python>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<python>", "exec", dont_inherit=True), namespace)
        if last:  # "single": the interpreter's own way to show a value that is not None
            exec(compile(ast.Interactive([last]), "<python>", "single", dont_inherit=True), namespace)
    except SystemExit as stop:
        if stop.code is None or stop.code == 0:
            return DONE
        if not isinstance(stop.code, int):
            stream.write(f"{stop.code}\n")
        return EXCEPTION
    except (OutputFull, MemoryError):
        raise
    except BaseException as error:
        lines = traceback.format_exception_only(error)
        # A SyntaxError is preceded by its source lines, others may be followed by notes.
        stream.write(lines[-1] if isinstance(error, SyntaxError) else lines[0])
        return EXCEPTION
    return DONE


def be_quiet() -> None:
    """Undo what would act during a later call by itself: tracing, timers, and the signals they have sent."""
    sys.settrace(None)
    sys.setprofile(None)
    for timer, number in TIMERS.items():
        signal.setitimer(timer, 0)
        signal.signal(number, signal.SIG_IGN)  # which drops one that is pending
        signal.signal(number, signal.SIG_DFL)


class Output(io.RawIOBase):
    """Standard output up to a number of bytes; the first byte beyond ends the call, and its variables remain."""

    def __init__(self, most: int):
        self.left = most

    @classmethod
    def stream(cls, most: int) -> io.TextIOWrapper:
        return io.TextIOWrapper(io.BufferedWriter(cls(most)), "utf-8", "backslashreplace", line_buffering=True)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1

    def write(self, data: memoryview) -> int:
        written = os.write(1, data[: self.left]) if self.left else 0
        self.left -= written
        if self.left == 0 and written < len(data):
            raise OutputFull
        return written
