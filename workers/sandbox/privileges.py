"""Give up every privilege, for good: no new ones by execve, no root, no capability, no tracing by one's equals."""

import ctypes
import errno
import os

from workers.sandbox import kernel

NOBODY = 65534
CAPABILITY_VERSION_3 = 0x20080522
CAPABILITIES_OF_THIS_PROCESS = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
NONE = (ctypes.c_uint32 * 6)()  # two words each of effective, permitted, inheritable


def drop() -> None:
    """Make this process nobody's, where it is root's, and clear all capabilities, which needs no permission."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if os.geteuid() == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        except OSError as error:
            # A container may have root without CAP_SETUID (EPERM) or a user namespace without nobody (EINVAL). Root
            # without capabilities is an ordinary user there; the other layers do not depend on the user.
            if error.errno not in (errno.EPERM, errno.EINVAL):
                raise
    kernel.checked(kernel.libc().capset(CAPABILITIES_OF_THIS_PROCESS, NONE), "capset")
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # no core, whatever program the machine pipes them to; no tracing
