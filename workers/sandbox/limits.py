"""What one call of the Python tool may use, and the kernel's limits that hold a session's process to that."""

import math
import resource
import time
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of one call; a run's are environment.tool_timeout_s, tool_memory_mb and tool_output_bytes.

    seconds: wall-clock time from the start of the code.
    memory_mb: address space in MiB beyond what the interpreter itself takes; what earlier calls keep counts too.
    output_bytes: bytes of stdout and stderr together; the code is stopped at the first byte beyond.
    cpu_seconds: CPU time, rounded up to whole seconds; by default as much as `seconds`.
    """

    seconds: float
    memory_mb: int
    output_bytes: int
    cpu_seconds: float | None = None

    def __post_init__(self):
        for name in ("seconds", "memory_mb", "output_bytes", "cpu_seconds"):
            value = getattr(self, name)
            if value is not None and not (0 < value < math.inf):
                raise ValueError(f"{name} must be a positive number, found {value!r}")

    def apply(self, interpreter_bytes: int) -> None:
        """Bind this process: soft and hard limits, which a process without capabilities cannot raise again.

        interpreter_bytes: address space in use before the first call, in bytes.
        """
        address_space = interpreter_bytes + int(self.memory_mb * MIB)
        for what, soft, hard in (
            (resource.RLIMIT_AS, address_space, address_space),
            (resource.RLIMIT_STACK, 8 * MIB, 8 * MIB),
            (resource.RLIMIT_FSIZE, 0, 0),  # pipes are not files: printing still works
            (resource.RLIMIT_NOFILE, 16, 16),
            (resource.RLIMIT_NPROC, 0, 0),
            (resource.RLIMIT_CORE, 0, 0),
            (resource.RLIMIT_MEMLOCK, 0, 0),
            (resource.RLIMIT_MSGQUEUE, 0, 0),
        ):
            ceiling = resource.getrlimit(what)[1]
            if ceiling != resource.RLIM_INFINITY:
                soft, hard = min(soft, ceiling), min(hard, ceiling)
            resource.setrlimit(what, (soft, hard))

    def grant_cpu(self, pid: int) -> None:
        """Let another process of this user have the CPU time of one more call.

        Its code can ignore SIGXCPU; what then stops it is the fork server's clock, and where that hangs, the worker's.
        """
        used = time.clock_gettime(~pid << 3 | 2)  # how the kernel names the CPU clock of a process
        ceiling = resource.prlimit(pid, resource.RLIMIT_CPU)[1]
        soft = math.ceil(used + (self.cpu_seconds or self.seconds))
        if ceiling != resource.RLIM_INFINITY:
            soft = min(soft, ceiling)
        resource.prlimit(pid, resource.RLIMIT_CPU, (soft, ceiling))


def address_space_bytes() -> int:
    """Address space that this process uses now, in bytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()
