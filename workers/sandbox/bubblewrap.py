"""bubblewrap, where the kernel lacks Landlock or seccomp: the whole fork server in namespaces of its own.

    host                                        inside
    /usr, /lib…, /bin, /sbin, Python, headrace  the same, read-only; /proc of its own processes, an empty /tmp; no more
    users, processes, network, IPC              one user without capabilities, its own processes, no network

Coarser than Landlock: code can read the packages that are installed, and where seccomp is what is missing, sessions can
signal each other. What is left of the other layers binds each child as ever. Needs `bwrap` in PATH, and unprivileged
user namespaces or root.
"""

import os
import shutil
import sys
from pathlib import Path

NOBODY = "65534"
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache")
PACKAGE = Path(__file__).resolve().parents[2]


def command() -> list[str]:
    """What goes before a command to run it inside; empty where there is no bubblewrap."""
    program = shutil.which("bwrap")
    if program is None:
        return []
    # Python itself and its packages, and those of ours that the fork server or a preloaded module of ours needs.
    ours = [str(PACKAGE / name) for name in ("workers", "pipeline", "advantage")]
    python = [sys.base_prefix, sys.prefix, os.path.dirname(os.path.realpath(sys.executable))]
    arguments = [program, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    arguments += ["--uid", NOBODY, "--gid", NOBODY, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for path in (*SYSTEM, *python, *ours):
        arguments += ["--ro-bind-try", path, path]
    return [*arguments, "--chdir", "/", "--"]
