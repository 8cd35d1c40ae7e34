"""The confined Python tool: code of a model runs here, and can do nothing but compute and print.

    worker (asyncio)                  fork server (own process, small, warm)      child (one per session)
    Session.run(code)         ─pipe→  fork at its first call, SIGCONT at others  →  limits, nobody, Landlock, seccomp
          ToolResult          ←─────  output, deadline, exit status; SIGSTOP     ←  exec(code); stdout and stderr

    async with PythonSandbox(Limits(seconds=2.0, memory_mb=256, output_bytes=4096), preload=["sympy"]) as sandbox:
        async with sandbox.session() as python:
            await python.run("x = 6 * 7")      # ToolResult(output="", error=None, seconds=0.003, state_lost=False)
            await python.run("x")              # output="42\\n": as in a notebook, the value of the last line

What confines the child, each enough against most escapes by itself: resource limits (limits.py), another user without
any capability (privileges.py), no files but the standard library and the packages asked for, no TCP and no signals
(landlock.py), and some fifty system calls that cannot open sockets, start processes or threads, or change limits
(seccomp.py). Between calls it is stopped, and so cannot act at all (forked.py).
"""

from workers.sandbox.limits import Limits

__all__ = ["Limits", "PythonSandbox", "SandboxUnavailable", "Session", "ToolResult"]


def __getattr__(name):
    # The fork server imports this package too. The client brings asyncio with it, and every page of the server is a
    # page that each fork must map: so the client is imported by those who ask for it.
    if name in __all__:
        from workers.sandbox import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
