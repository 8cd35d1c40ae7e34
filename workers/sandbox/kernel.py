"""System calls that Python's os module lacks, through the C library; a failure raises OSError with its errno."""

import ctypes
import functools
import os

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38


@functools.cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """Return `result`, or raise the OSError that a negative one stands for."""
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")
    return result


def syscall(number: int, what: str, *arguments) -> int:
    """Call the kernel by number; integers are widened to C's long, as the variadic syscall(2) needs."""
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return checked(libc().syscall(ctypes.c_long(number), *wide), what)


def prctl(option: int, *arguments) -> None:
    """prctl(2), its unused arguments 0: the kernel refuses anything else for several options."""
    wide = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in (*arguments, 0, 0, 0, 0)[:4]]
    checked(libc().prctl(option, *wide), f"prctl({option})")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; exit now if it has ended already."""
    prctl(PR_SET_PDEATHSIG, 9)
    if os.getppid() != parent:
        os._exit(1)
