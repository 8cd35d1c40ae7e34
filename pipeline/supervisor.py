"""Start processes, notice that they end, stop them so that nothing is left.

    Supervisor.start(Program) ──▶ Process   its own process group, its own log, killed by the kernel if we are SIGKILLed
               .check() ────────▶ [Exit]    what has ended since the last look; as text with the end of its log
               .restart_later(Exit)         after a pause that doubles: 1, 2, 4 … seconds
               .wait_until(condition, …)    unless something fails meanwhile
               .drain(name), .stop(names)   SIGTERM, SIGKILL to the groups of those that outlive their grace

Terminal signals do not reach the children (they are in other process groups): the launcher stops them in its own order.
Everything here runs in the main thread, because the kernel's watch on the parent is a watch on the thread that forked.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import die_with_parent
from pipeline.errors import HeadraceError
from pipeline.log import event_of
from pipeline.secrets import masked

POLL_S = 0.05  # of a stop
LOOK_S = 0.1  # of a wait


class ProcessFailed(HeadraceError):
    """A process ended that should not have; the message holds the end of its log."""

    code = "PROCESS"


@dataclass(frozen=True)
class Program:
    """What to start: `env` goes on top of ours, `log` is appended to, `grace_s` are left to it after SIGTERM. One that
    `serves` has failed even if it ends with 0."""

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = 10
    serves: bool = False
    private: bool = False  # its log has secrets, and is for our own user alone


@dataclass
class Process:
    """A program that was started."""

    program: Program
    popen: subprocess.Popen
    started: float  # time.monotonic()
    failures: int = 0  # in a row
    deadline: float | None = None  # of a drain: when it is killed

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def terminate(self) -> None:
        """SIGTERM to the process alone: SGLang and torchrun take their children down in order."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.terminate()

    def kill_group(self) -> None:
        """SIGKILL whatever is left of the process and its children. A group outlives its leader."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(10)


@dataclass(frozen=True)
class Exit:
    """A process that has ended by itself."""

    process: Process
    returncode: int

    @property
    def name(self) -> str:
        return self.process.program.name

    @property
    def summary(self) -> str:
        code = self.returncode
        return f"{self.name} {f'exited with {code}' if code >= 0 else f'was killed by {_signal_name(-code)}'}"

    def __str__(self) -> str:
        return self.summary + log_end(self.process.program.log)


@dataclass
class Supervisor:
    processes: dict[str, Process] = field(default_factory=dict)
    hurry: bool = False  # set by a second Ctrl-C: no grace for anybody any more
    _planned: dict[str, tuple[float, Process]] = field(default_factory=dict)  # name -> when to start again, what

    def start(self, program: Program, failures: int = 0) -> Process:
        if program.name in self.processes:
            raise ProcessFailed(f"{program.name} runs already, as process {self.processes[program.name].popen.pid}")
        program.log.parent.mkdir(parents=True, exist_ok=True)
        with program.log.open("ab") as output:
            if program.private:
                os.fchmod(output.fileno(), 0o600)
            popen = subprocess.Popen(
                [sys.executable, "-S", "-E", die_with_parent.__file__, str(os.getpid()), *program.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **program.env},
                process_group=0,
            )
        process = self.processes[program.name] = Process(program, popen, time.monotonic(), failures)
        return process

    @property
    def names(self) -> set[str]:
        """Of all that runs, or will run again in a moment."""
        return self.processes.keys() | self._planned.keys()

    def check(self) -> list[Exit]:
        """Processes that have ended since the last call; whatever they left in their groups is killed."""
        for process in self.processes.values():
            if process.deadline is not None and time.monotonic() > process.deadline:
                process.kill_group()
        ended = [process for process in self.processes.values() if not process.running]
        for process in ended:
            process.kill_group()
            del self.processes[process.program.name]
        return [Exit(process, process.popen.returncode) for process in ended]

    def restart_later(self, exit: Exit, limit: int, worked: bool = False, stable_s: float = 60) -> float | None:
        """Plan a new start of what ended, in 1, 2, 4 … seconds; None: it failed `limit` times in a row already.

        A process that ran for `stable_s` seconds, or has done its work, starts counting anew.
        """
        process = exit.process
        anew = worked or time.monotonic() - process.started > stable_s
        failures = 0 if anew else process.failures
        if failures >= limit:
            return None
        process.failures = failures + 1
        pause = 2.0**failures
        self._planned[exit.name] = (time.monotonic() + pause, process)
        return pause

    def restart_due(self) -> None:
        """Start again what restart_later() planned and is due."""
        for name, (due, process) in list(self._planned.items()):
            if due <= time.monotonic():
                del self._planned[name]
                self.start(process.program, process.failures)

    def wait_until(self, condition: Callable[[], bool], program: Program, timeout_s: float) -> None:
        """Wait for what `program` does. Raises ProcessFailed if any process fails meanwhile, or it takes longer."""
        deadline = time.monotonic() + timeout_s
        while True:
            done = condition()
            for exit in self.check():
                if exit.returncode or exit.process.program.serves:
                    raise ProcessFailed(str(exit))
            if done:
                return
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{program.name} took longer than {timeout_s:.0f} s{log_end(program.log)}")
            time.sleep(LOOK_S)

    def drain(self, name: str, grace_s: float | None = None) -> None:
        """SIGTERM now, SIGKILL by check() after its grace, which `grace_s` shortens; does not wait. Repeated, it
        changes nothing but the grace."""
        self._planned.pop(name, None)
        process = self.processes.get(name)
        if process is None:
            return
        if process.deadline is None:
            process.terminate()
            process.deadline = time.monotonic() + process.program.grace_s
        if grace_s is not None:
            process.deadline = min(process.deadline, time.monotonic() + grace_s)

    def stop(self, names: Iterable[str] | None = None, grace_s: float | None = None) -> None:
        """Drain `names` (None: all) and wait until they are gone."""
        names = self.names if names is None else set(names)
        for name in names:
            self.drain(name, grace_s)
        while names & self.processes.keys():
            if self.hurry:
                for name in names & self.processes.keys():
                    self.processes[name].deadline = 0.0
            self.check()
            time.sleep(POLL_S)


def log_end(log: Path, lines: int = 15) -> str:
    """The last lines of a log file, however large it is, to be put behind an error message."""
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16384))
        last = file.read().decode(errors="replace").splitlines()[-lines:]
        if last:
            shown = [part for line in last for part in masked(event_of(line)).splitlines()]
            return "\n".join([f"; the end of {log}:", *("    " + line for line in shown)])
    return f"; {log} is empty"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
