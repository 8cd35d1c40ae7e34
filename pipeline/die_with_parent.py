"""Become a program that the kernel kills when the process that started it is gone.

    launcher ──Popen──▶ python -S -E die_with_parent.py PARENT_PID program …  ──exec──▶ program

A launcher that is SIGKILLed can stop nothing any more; then the kernel does it (prctl PR_SET_PDEATHSIG). The setting
survives exec but is not inherited by fork, so torchrun starts its ranks through this file too (see programs.py), and
SGLang's scheduler sets it by itself. It is a program of its own because code between fork and exec is unsafe in a
process with threads; it imports nothing of ours and costs about 25 ms.

The kernel watches the *thread* that forked: start processes from the main thread only.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, argv: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent and os.getppid() != parent:
        sys.exit("the process that started this one has died")
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.exit(f"{argv[0]}: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
