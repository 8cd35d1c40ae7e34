"""Landlock: the kernel's own list of files that a process may touch, however it came by their names.

A ruleset handles (that is: denies) every access that this kernel's ABI knows, and then allows reading a few places.
It is built once, by the fork server; each child binds itself to it with one system call.
Source: Linux, Documentation/userspace-api/landlock.rst and include/uapi/linux/landlock.h.
"""

import ctypes
import os
from collections.abc import Iterable

from workers.sandbox import kernel

# The same numbers on every architecture (they are younger than the common table).
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG = 1
RULE_PATH_BENEATH = 1

READ_FILE, READ_DIR = 1 << 2, 1 << 3
# ABI → number of file-system rights it knows; newer ABIs know at least those of the newest row.
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
TCP_BIND_AND_CONNECT = 0b11  # from ABI 4
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11  # from ABI 6


class RulesetAttributes(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class PathBeneath(ctypes.Structure):
    _fields_ = (("allowed", ctypes.c_uint64), ("place", ctypes.c_int32))


def abi() -> int:
    """The version of Landlock that this kernel offers; raises OSError where there is none."""
    return kernel.syscall(CREATE_RULESET, "landlock_create_ruleset", None, 0, VERSION_FLAG)


def ruleset(readable: Iterable[str], listable: Iterable[str] = ()) -> int:
    """Build a ruleset that allows nothing but to read files and what is below folders; returns its descriptor.

    listable: folders below which names, but no contents, may be seen.
    """
    version = abi()
    attributes = RulesetAttributes(files=(1 << FILE_RIGHTS[min(version, max(FILE_RIGHTS))]) - 1)
    size = 8
    if version >= 4:
        attributes.net, size = TCP_BIND_AND_CONNECT, 16
    if version >= 6:
        attributes.scoped, size = ABSTRACT_SOCKETS_AND_SIGNALS, 24
    rules = kernel.syscall(CREATE_RULESET, "landlock_create_ruleset", ctypes.byref(attributes), size, 0)
    rights = [(path, READ_FILE | READ_DIR if os.path.isdir(path) else READ_FILE) for path in readable]
    rights += [(path, READ_DIR) for path in listable]
    for path, allowed in rights:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = PathBeneath(allowed=allowed, place=place)
        kernel.syscall(ADD_RULE, "landlock_add_rule", rules, RULE_PATH_BENEATH, ctypes.byref(rule), 0)
        os.close(place)
    return rules


def restrict(rules: int) -> None:
    """Bind this process to the ruleset for ever; needs no_new_privs."""
    kernel.syscall(RESTRICT_SELF, "landlock_restrict_self", rules, 0)
