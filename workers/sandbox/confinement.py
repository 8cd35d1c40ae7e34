"""What binds a child: the layers, prepared and tried once by the fork server, then applied by every child to itself."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workers.sandbox import kernel, landlock, privileges, seccomp
from workers.sandbox.limits import Limits, address_space_bytes

CONTROL = 3  # the first descriptor after the standard three


@dataclass(frozen=True)
class Confinement:
    """Everything that binds a child, prepared once; a layer that the kernel lacks is None."""

    limits: Limits
    interpreter_bytes: int
    rules: int | None
    program: seccomp.Program | None

    @property
    def layers(self) -> list[str]:
        """Those that this machine has, of the two that it may lack."""
        return ["Landlock"] * (self.rules is not None) + ["seccomp"] * (self.program is not None)

    def apply(self, server: int, control: int) -> None:
        """Bind this process for ever; its server has given up its privileges before.

        server: pid of the fork server, with which this process must end. control: stays open, as CONTROL.
        """
        kernel.die_with_parent(server)
        if self.rules is not None:
            landlock.restrict(self.rules)
        os.dup2(control, CONTROL)
        os.closerange(CONTROL + 1, 1 << 20)  # the server's channel, other sessions' sockets and pipes, the ruleset
        self.limits.apply(self.interpreter_bytes)
        if self.program is not None:
            seccomp.load(self.program)


def prepare(
    limits: Limits, files: Iterable[str], folders: Iterable[str] = ()
) -> tuple[Confinement, list[tuple[str, str]]]:
    """Build what binds a child, and say which layers cannot be had: [(code, what is missing and what to do)].

    files: what code may read, whole folders too. folders: those that it may list (landlock.py).
    """
    missing, rules, program = [], None, None
    try:
        program = seccomp.compile_filter()
    except ImportError:
        missing.append(("LIBSECCOMP", "the Python package pyseccomp: pip install 'headrace[rollout]'"))
    except (RuntimeError, OSError) as error:
        missing.append(("LIBSECCOMP", f"libseccomp ({error}): apt-get install libseccomp2"))
    else:
        try:
            trial(lambda: seccomp.load(program))
        except OSError as error:
            program = None
            what = "a kernel with CONFIG_SECCOMP_FILTER and a container that allows prctl(PR_SET_SECCOMP)"
            missing.append(("SECCOMP", f"seccomp ({error}): it needs {what}"))
    try:
        rules = landlock.ruleset(files, folders)
        trial(lambda: landlock.restrict(rules))
    except OSError as error:
        rules = None
        what = "Linux 5.13 with landlock in its lsm= list, and a container whose seccomp profile allows landlock_*"
        missing.append(("LANDLOCK", f"Landlock ({error}): it needs {what}"))
    return Confinement(limits, address_space_bytes(), rules, program), missing


def trial(layer: Callable[[], None]) -> None:
    """Bind a child with one layer, and nothing else; raises the OSError that it met."""
    pid = os.fork()
    if pid == 0:
        status = 255
        try:
            privileges.drop()
            layer()
            status = 0
        except OSError as error:
            status = error.errno
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        raise OSError(status, os.strerror(status))
