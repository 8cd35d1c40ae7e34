"""The confined Python tool: code of a model runs here, and can do nothing but compute and print.

    worker (asyncio)                 fork server (own process, small, warm)        child (one per call)
    PythonSandbox.run(code)  ─pipe→  fork                                   ──→    limits, nobody, Landlock, seccomp
          ToolResult         ←─────  output, deadline, exit status          ←──    exec(code); stdout and stderr

    async with PythonSandbox(Limits(seconds=2.0, memory_mb=256, output_bytes=4096)) as sandbox:
        result = await sandbox.run("print(6 * 7)")       # ToolResult(output="42\\n", error=None, seconds=0.003)

What confines the child, each enough against most escapes by itself: resource limits (limits.py), another user without
any capability (privileges.py), no files but the standard library, no TCP and no signals (landlock.py), and some fifty
system calls that cannot open sockets, start processes or threads, or change limits (seccomp.py).
"""

from workers.sandbox.limits import Limits

__all__ = ["Limits", "PythonSandbox", "SandboxUnavailable", "ToolResult"]


def __getattr__(name):
    # The fork server imports this package too. The client brings asyncio with it, and every page of the server is a
    # page that each fork must map: so the client is imported by those who ask for it.
    if name in __all__:
        from workers.sandbox import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
