"""seccomp: the system calls that computing and printing need; every other one fails with EPERM.

The filter is compiled once, by the fork server (libseccomp knows the numbers of each architecture); each child loads
the finished program with one prctl. Failing instead of killing lets the code see an ordinary PermissionError.
"""

import ctypes
import errno
import os

from workers.sandbox import kernel

MODE_FILTER = 2

MEMORY = ("brk", "madvise", "mmap", "mprotect", "mremap", "munmap")
# Landlock decides which files; stat and getdents64 serve the import system.
FILES = ("close", "fstat", "getcwd", "getdents64", "lseek", "lstat", "newfstatat", "pread64", "read", "readv", "stat")
PRINT = ("write", "writev")
TIME = (
    *("alarm", "clock_getres", "clock_gettime", "clock_nanosleep", "getitimer", "gettimeofday", "nanosleep"),
    *("setitimer", "time", "times"),
)
SELF = (
    *("getegid", "geteuid", "getgid", "getpid", "getppid", "getrandom", "getrusage", "gettid", "getuid"),
    *("sched_getaffinity", "sched_yield", "futex", "exit", "exit_group"),
    *("rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigreturn", "sigaltstack"),
)
# Where the C library tries a newer call first, "no such call" makes it fall back; EPERM would make it give up.
UNKNOWN = ("clone3", "faccessat2", "openat2", "rseq", "statx")

WRITING_OR_PATH = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_PATH


class Program(ctypes.Structure):
    """struct sock_fprog: the number of 8-byte instructions, and where they are."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def compile_filter() -> Program:
    """Compile the allow-list for this machine's architecture; other ABIs (i386, x32) kill the process.

    Raises ImportError without pyseccomp, RuntimeError (from pyseccomp) without libseccomp, OSError where it fails.
    """
    import pyseccomp

    allow_list = pyseccomp.SyscallFilter(pyseccomp.ERRNO(errno.EPERM))
    allow_list.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.KILL_PROCESS)

    def rule(action, name, *conditions):
        number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
        if number >= 0:  # negative: not on this architecture, or younger than this libseccomp
            allow_list.add_rule(action, number, *conditions)

    for name in (*MEMORY, *FILES, *PRINT, *TIME, *SELF):
        rule(pyseccomp.ALLOW, name)
    for name in UNKNOWN:
        rule(pyseccomp.ERRNO(errno.ENOSYS), name)
    rule(pyseccomp.ALLOW, "openat", pyseccomp.Arg(2, pyseccomp.MASKED_EQ, WRITING_OR_PATH, os.O_RDONLY))

    with open(os.memfd_create("seccomp"), "w+b") as file:
        allow_list.export_bpf(file)
        file.seek(0)
        instructions = file.read()
    return Program(len(instructions) // 8, instructions)


def load(program: Program) -> None:
    """Bind this process to the filter for ever; needs no_new_privs."""
    kernel.prctl(kernel.PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(program))
