"""The forked child: confine this process, run the code, print as Python would, exit with a status that says how.

The code is not trusted, so neither is anything that the child says: its output is text, its exit status a label that
can mislead only about itself. Time, output and the child's end are watched from outside, by the fork server.
"""

import gc
import os
import signal
import sys
import traceback
import types
from typing import NoReturn

from workers.sandbox.confinement import Confinement

DONE, EXCEPTION, MEMORY, REFUSED = 0, 1, 75, 76


def run(code: str, output: int, confinement: Confinement, server: int) -> NoReturn:
    """Become the process that runs `code`, its stdout and stderr the descriptor `output`; never returns."""
    status = REFUSED
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            confinement.apply(server)
        except OSError as error:
            os.write(1, f"the sandbox could not confine the code: {error}\n".encode())
        else:
            status = EXCEPTION
            status = execute(code)
    finally:
        os._exit(status)  # whatever happened: this process must never return into the server's loop


def execute(code: str) -> int:
    """Run `code` as the main module; an uncaught exception is printed as the last line of Python's traceback."""
    stream = open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = sys.stderr = sys.__stderr__ = stream  # one stream: the order of prints is kept
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    gc.enable()
    status = EXCEPTION
    try:
        exec(compile(code, "<python>", "exec"), main.__dict__)
        status = DONE
    except SystemExit as stop:
        if stop.code is None or stop.code == 0:
            status = DONE
        elif not isinstance(stop.code, int):
            stream.write(f"{stop.code}\n")
    except MemoryError:
        status = MEMORY
        stream.write("MemoryError\n")
    except BaseException as error:
        lines = traceback.format_exception_only(error)
        # A SyntaxError is preceded by its source lines, others may be followed by notes.
        stream.write(lines[-1] if isinstance(error, SyntaxError) else lines[0])
    stream.flush()
    return status
