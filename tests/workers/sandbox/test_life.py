"""The fork server's life: many calls, cancelled ones, its and the worker's death, and machines that lack a layer."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.workers.sandbox.conftest import in_one_session as once
from workers.sandbox import Limits, PythonSandbox, SandboxUnavailable
from workers.sandbox.confinement import prepare

PATIENT = Limits(seconds=30.0, memory_mb=256, output_bytes=4096)


def children(parent):
    """Pids of the living and the unreaped children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # ended while we looked
                continue
            if int(after_name[1]) == parent:
                found.append(int(entry.name))
    return found


def gone(pids, within=10.0):
    """True when none of the processes runs any more (a zombie that its new parent has yet to reap has ended)."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        if not [pid for pid in pids if state(pid) not in ("", "Z")]:
            return True
        time.sleep(0.02)
    return False


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


async def until(condition, within=20.0):
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


def the_server(before=()):
    (pid,) = set(children(os.getpid())) - set(before)
    return pid


def test_sixty_four_episodes_share_the_places_and_each_gets_its_own_answer():
    async def scenario():
        before = children(os.getpid())
        async with PythonSandbox(PATIENT, concurrency=4) as sandbox:
            server, most = the_server(before), 0
            sessions = [sandbox.session() for _ in range(64)]
            calls = [
                asyncio.create_task(session.run(f"import time\ntime.sleep(0.02)\nprint({number})"))
                for number, session in enumerate(sessions)
            ]
            while not all(call.done() for call in calls):
                most = max(most, sum(state(child) in "RSD" for child in children(server)))
                await asyncio.sleep(0.005)
            assert [call.result().output for call in calls] == [f"{number}\n" for number in range(64)]
            assert 2 <= most <= 4

    asyncio.run(scenario())


def test_what_confines_the_tool_is_in_the_log(caplog):
    async def scenario():
        async with PythonSandbox(PATIENT) as sandbox:
            return sandbox.confinement

    with caplog.at_level("INFO"):
        confinement = asyncio.run(scenario())
    assert confinement and f"the Python tool is confined by {confinement}" in caplog.messages


def test_seen_from_outside_a_child_has_no_privilege_and_every_filter():
    async def scenario():
        before = children(os.getpid())
        async with PythonSandbox(PATIENT, concurrency=1) as sandbox:
            call = asyncio.create_task(once(sandbox, "print('running', flush=True)\nwhile True: pass"))
            await until(lambda: children(the_server(before)))
            (child,) = children(the_server(before))
            await until(lambda: status_of(child)["Seccomp"] == "2")
            status, owner = status_of(child), os.stat(f"/proc/{child}/mem").st_uid
            call.cancel()
        assert status["NoNewPrivs"] == "1"
        assert [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == ["0" * 16] * 4
        if os.geteuid() == 0 and int(status_of(os.getpid())["CapEff"], 16) & (1 << 7):  # CAP_SETUID
            assert status["Uid"].split() == status["Gid"].split() == ["65534"] * 4
            assert status["Groups"] == ""
            assert owner == 0, "not its own: it can be neither traced by its equals nor dumped"

    asyncio.run(scenario())


def status_of(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_a_cancelled_call_stops_its_child_and_frees_its_place():
    async def scenario():
        before = children(os.getpid())
        async with PythonSandbox(PATIENT, concurrency=1) as sandbox:
            call = asyncio.create_task(once(sandbox, "while True: pass"))
            await until(lambda: children(the_server(before)))
            call.cancel()
            assert (await once(sandbox, "print('next')")).output == "next\n"
            assert call.cancelled()
            await until(lambda: not children(the_server(before)))

    asyncio.run(scenario())


def test_closing_stops_running_calls_and_leaves_no_process_and_no_zombie():
    async def scenario():
        before = children(os.getpid())
        sandbox = PythonSandbox(PATIENT, concurrency=2)
        await sandbox.start()
        server = the_server(before)
        calls = [asyncio.create_task(once(sandbox, "while True: pass")) for _ in range(3)]
        await until(lambda: len(children(server)) == 2)
        processes = [server, *children(server)]
        await sandbox.close()
        assert gone(processes)
        assert children(os.getpid()) == before
        for call in calls:
            with pytest.raises(SandboxUnavailable) as error:
                await call
            assert error.value.code == "CLOSED"

    asyncio.run(scenario())


def test_closing_amid_answers_is_silent(capfd):
    async def scenario():
        for _ in range(5):
            sandbox = PythonSandbox(PATIENT, concurrency=8)
            await sandbox.start()
            calls = [asyncio.create_task(once(sandbox, "print(1)")) for _ in range(16)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            await sandbox.close()
            await asyncio.wait(calls)
            assert {type(call.exception()) for call in calls} <= {type(None), SandboxUnavailable}

    asyncio.run(scenario())
    assert capfd.readouterr().err == ""


def test_a_sessions_first_call_survives_the_fork_servers_death(caplog):
    async def scenario():
        before = children(os.getpid())
        async with PythonSandbox(PATIENT, concurrency=2) as sandbox:
            server = the_server(before)
            call = asyncio.create_task(once(sandbox, "import time\ntime.sleep(0.5)\nprint('done')"))
            await until(lambda: children(server))
            (child,) = children(server)
            os.kill(server, signal.SIGKILL)
            assert (await call).output == "done\n"
            assert the_server(before) != server
            assert gone([server, child])

    asyncio.run(scenario())
    assert "starting another" in caplog.text


def test_a_fork_server_that_keeps_dying_is_an_error_after_three_times():
    async def scenario():
        before = children(os.getpid())
        sandbox = PythonSandbox(PATIENT, concurrency=1)
        await sandbox.start()
        call = asyncio.create_task(once(sandbox, "while True: pass"))
        while not call.done():
            for server in set(children(os.getpid())) - set(before):
                if children(server):
                    os.kill(server, signal.SIGKILL)
            await asyncio.sleep(0.01)
        with pytest.raises(SandboxUnavailable, match="died 3 times") as error:
            await call
        assert error.value.code == "SERVER"
        await sandbox.close()
        assert children(os.getpid()) == before

    asyncio.run(scenario())


def test_the_kernel_ends_a_busy_child_even_when_its_server_is_stopped():
    async def scenario():
        before = children(os.getpid())
        async with PythonSandbox(replace(PATIENT, seconds=1.0), concurrency=1) as sandbox:
            server = the_server(before)
            call = asyncio.create_task(once(sandbox, "while True: pass"))
            await until(lambda: children(server))
            os.kill(server, signal.SIGSTOP)
            await until(lambda: [state(child) for child in children(server)] == ["Z"])
            os.kill(server, signal.SIGCONT)
            assert (await call).error == "timeout"

    asyncio.run(scenario())


def test_a_fork_server_that_hangs_is_replaced_and_its_children_end(monkeypatch):
    monkeypatch.setattr("workers.sandbox.client.GRACE_SECONDS", 0.5)
    ignores = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"

    async def scenario():
        before = children(os.getpid())
        async with PythonSandbox(replace(PATIENT, seconds=0.5), concurrency=1) as sandbox, sandbox.session() as python:
            server = the_server(before)
            await python.run("x = 1")
            (child,) = children(server)
            call = asyncio.create_task(python.run(ignores))
            await until(lambda: state(child) == "R")
            os.kill(server, signal.SIGSTOP)
            with pytest.raises(SandboxUnavailable, match="begin the episode again"):
                await call
            assert gone([server, child])
            assert (await python.run("2")).output == "2\n"

    asyncio.run(scenario())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_survives_a_killed_worker(how):
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER.replace("CODE", "while True: pass")], stdout=subprocess.PIPE
    )
    with worker:
        assert b"started\n" in iter(worker.stdout.readline, b"")
        (server,) = children(worker.pid)
        end = time.monotonic() + 20
        while len(children(server)) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        processes = [server, *children(server)]
        assert len(processes) == 3
        worker.send_signal(how)
        worker.wait()
    assert gone(processes)


WORKER = """
import asyncio, logging, sys
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
from workers.sandbox import Limits, PythonSandbox, SandboxUnavailable
async def main():
    try:
        async with PythonSandbox(Limits(60.0, 256, 4096), 2, allow_unconfined="UNCONFINED" in sys.argv) as sandbox:
            print("started", flush=True)
            for result in await asyncio.gather(*[sandbox.session().run("CODE") for _ in range(2)]):
                print(result.output, result.error)
    except SandboxUnavailable as error:
        print(error.code, error)
asyncio.run(main())
"""

# A machine without a layer: this process forbids itself the system call, and what it starts inherits that.
LACKING = """
import errno, pyseccomp
lacks = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
lacks.add_rule(pyseccomp.ERRNO(errno.ENOSYS), RULE)
lacks.load()
"""


@pytest.mark.parametrize(
    ("code", "rule", "hint"),
    [
        ("LANDLOCK", "444", "Linux 5.13"),  # landlock_create_ruleset
        ("LANDLOCK", "446", "Linux 5.13"),  # landlock_restrict_self
        ("SECCOMP", "'prctl', pyseccomp.Arg(0, pyseccomp.EQ, 22)", "CONFIG_SECCOMP_FILTER"),
    ],
)
def test_a_machine_that_cannot_confine_refuses_or_warns_when_told_to_go_on(code, rule, hint):
    program = LACKING.replace("RULE", rule) + WORKER.replace("CODE", "print(6 * 7)")
    how = {"capture_output": True, "text": True, "timeout": 60, "env": os.environ | {"PATH": ""}}  # no bubblewrap
    refused = subprocess.run([sys.executable, "-c", program], **how)
    assert code + " the Python tool runs only confined" in refused.stdout and hint in refused.stdout, refused
    assert "environment.allow_unconfined = true" in refused.stdout
    told = subprocess.run([sys.executable, "-c", program, "UNCONFINED"], **how)
    assert "UNCONFINED; missing: " in told.stdout and "42\n None" in told.stdout, told


def test_cpu_time_is_granted_on_top_of_what_was_used():
    burn = "import time\nwhile time.process_time() < 1.1: pass\nprint('burnt', flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"burnt\n"
        replace(PATIENT, seconds=2.0).grant_cpu(process.pid)
        assert resource.prlimit(process.pid, resource.RLIMIT_CPU)[0] == 4  # 1.1 and 2, and whole seconds
        replace(PATIENT, cpu_seconds=4.0).grant_cpu(process.pid)
        assert resource.prlimit(process.pid, resource.RLIMIT_CPU)[0] == 6, "not the 30 s of the clock"
        process.kill()


def test_a_machine_without_libseccomp_says_what_to_install(monkeypatch):
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    monkeypatch.delitem(sys.modules, "pyseccomp", raising=False)
    _, ((code, message),) = prepare(PATIENT, [])
    assert code == "LIBSECCOMP" and "apt-get install libseccomp2" in message


def test_limits_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="seconds must be a positive number, found 0"):
        replace(PATIENT, seconds=0)


def test_a_closed_sandbox_says_so():
    async def scenario():
        async with PythonSandbox(PATIENT) as sandbox:
            pass
        with pytest.raises(SandboxUnavailable, match="closed"):
            await once(sandbox, "1")

    asyncio.run(scenario())
