"""Start a fork server so that it is confined, or say why it cannot be.

    start ──▶ launch with every layer ──lacks one──▶ launch within bubblewrap ──lacks it too──▶ refused, or unconfined
                └──────────────── a trial call tries to escape ────┘                            where that is allowed

What the process does then is server.py, how to talk to it connection.py.
"""

import asyncio
import dataclasses
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from workers.sandbox import bubblewrap
from workers.sandbox.connection import Connection, SandboxUnavailable, ServerDied
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


async def start(limits: Limits, modules: Sequence[str], allow_unconfined: bool) -> Connection:
    """Start the process and wait until it is ready; raises ServerDied, OSError or SandboxUnavailable."""
    try:
        return await launch(limits, modules)
    except SandboxUnavailable as error:
        if error.code not in LAYERS_OF_THE_KERNEL:
            raise
        lacking = error
    if within := bubblewrap.command():
        # Without seccomp it is a limit that forbids to fork, and none of those binds root.
        user = NOBODY if lacking.code == "SECCOMP" and os.geteuid() == 0 else None
        try:
            return await launch(limits, modules, within, user)
        except (ServerDied, OSError, SandboxUnavailable) as error:
            log.warning("bubblewrap is installed, and cannot confine the Python tool here: %s", error)
    if not allow_unconfined:
        raise lacking
    return await launch(limits, modules, unconfined=True)


async def launch(
    limits: Limits,
    modules: Sequence[str],
    within: Sequence[str] = (),
    user: int | None = None,
    unconfined: bool = False,
) -> Connection:
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
    server = Connection(process, *await asyncio.open_unix_connection(sock=ours))
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
                await try_to_escape(server, ESCAPES + [SIGNAL] * bool(hello["layers"]))
                level, missing = (logging.WARNING, f"; missing: {hello['missing']}") if within else (logging.INFO, "")
                log.log(level, "the Python tool is confined by %s%s", server.confinement, missing)
    except BaseException:
        await server.close()
        raise
    return server


async def try_to_escape(server: Connection, escapes: Sequence[str]) -> None:
    """Raises SandboxUnavailable unless the kernel refuses every one."""
    result = await server.call(PROBE_SESSION, PROBE.replace("ESCAPES", f"({', '.join(escapes)})"), START_SECONDS)
    if result.output != "confined\n":
        raise SandboxUnavailable(
            "ESCAPED", f"the kernel's confinement does not hold (a trial call gave {result}): run on Linux itself"
        )


def environment() -> dict[str, str]:
    """The fork server's environment: nothing of the worker's, which may hold secrets, but where to find libraries."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
    root = str(Path(__file__).resolve().parents[2])
    # Libraries of linear algebra start a thread per CPU when they are imported, unless told not to.
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**kept, **one_thread, "PATH": os.defpath, "LC_ALL": "C.UTF-8", "PYTHONPATH": root, "PYTHONSAFEPATH": "1"}
