"""Calls of one session: what they share, what ends it, and what they cannot do to each other or between them."""

import asyncio
import os
import signal
import time

import pytest

from tests.workers.sandbox.conftest import in_one_session
from tests.workers.sandbox.test_life import PATIENT, children, state, the_server, until
from workers.sandbox import Limits, PythonSandbox, SandboxUnavailable


def test_variables_imports_and_functions_of_one_call_are_there_in_the_next(run):
    calls = ("import math\nx = 3", "def f(y): return math.factorial(x) + y", "x += 1", "print(f(1))")
    assert run(*calls).output == "25\n"


def test_nothing_of_one_session_is_there_in_another(run):
    run("import math, builtins, sys\nmath.pi = 3\nbuiltins.leak = 1\nx = 1\nsys.path.append('/leak')")
    code = (
        "import math, builtins, sys\nprint(math.pi > 3, hasattr(builtins, 'leak'), 'x' in dir(), '/leak' in sys.path)"
    )
    assert run(code).output == "True False False False\n"


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("6 * 7", "42\n"),
        ("x = 2\nx ** 10", "1024\n"),
        ("'a\\n'", "'a\\n'\n"),
        ("print('shown')\n[1]", "shown\n[1]\n"),
        ("print('once')", "once\n"),
        ("None", ""),
        ("1\nx = 2", ""),  # only the last line's
        ("if True:\n    5", ""),
        ("", ""),
        ("# nothing", ""),
        ("'\\ud800'", "'\\ud800'\n"),
        ("chr(0xd800) + 'a'\nprint(chr(0xd800))", "\\ud800\n"),
    ],
)
def test_a_call_shows_the_value_of_its_last_line_as_a_notebook_does(run, code, output):
    result = run(code)
    assert (result.output, result.error) == (output, None)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("1 / 0", "exception"),
        ("raise SystemExit(3)", "exception"),
        ("exit()", None),
        ("raise KeyboardInterrupt", "exception"),
        ("def f(): return f()\nf()", "exception"),
        ("str(10 ** 5000)", "exception"),  # ValueError: the interpreter's own limit on digits
        ("print('x' * 10_000_000)", "output"),
        ("while True: print('x')", "output"),
        ("import sys\nsys.stdout.close()", None),
        ("import os\nos.close(0)", None),
    ],
)
def test_what_ends_a_call_and_not_the_process_keeps_the_variables(run, code, error):
    result = run("x = 1", code)
    assert (result.error, result.state_lost) == (error, False)
    result = run("x = 1", code, "print(x, input)")
    assert result.output == "1 <built-in function input>\n"


# The code runs in the process that reports, so it can find what makes a report: it can end its own call early, once.
REPORT = """
import os, sys
frame = sys._getframe()
while "token" not in frame.f_locals: frame = frame.f_back
token = frame.f_locals["token"]
"""


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("while True: pass", "timeout"),
        ("x = bytearray(4 << 30)", "memory"),
        ("import os\nos._exit(0)", "crashed"),
        ("import os\nos._exit(75)", "memory"),  # it may lie about itself
        ("import ctypes\nctypes.string_at(0)", "crashed"),
        ("import os\nwhile True: os.write(1, b'x')", "output"),
        ("import os\nos.close(3)", "crashed"),
        ("import os\nos.write(3, b'\\0')", "crashed"),
        ("import os\nos.write(3, bytes(9))", "crashed"),
        (REPORT + "os.write(3, token + b'\\7')", "crashed"),
        (REPORT + "os.write(3, token + bytes(2))", "crashed"),
        ("import os\nwhile True: os.write(3, b'\\0' * 65536)", "crashed"),
        ("import builtins\nbuiltins.compile = builtins.len = None", "crashed"),
    ],
)
def test_what_ends_the_process_loses_the_variables_and_says_so_once(loop, code, error):
    async def scenario():
        async with PythonSandbox(Limits(0.5, 128, 4096)) as sandbox, sandbox.session() as python:
            await python.run("x = 1")
            result = await python.run(code)
            if not result.state_lost:  # what was done to the interpreter shows in the next call
                result = await python.run("1")
            assert (result.error, result.state_lost) == (error, True)
            result = await python.run("x")
            assert result.output == "NameError: name 'x' is not defined\n"
            assert not result.state_lost

    loop.run(scenario())


def test_memory_that_earlier_calls_keep_counts(run):
    assert run("x = bytearray(80 << 20)", "y = bytearray(80 << 20)").error == "memory"
    assert run("x = bytearray(80 << 20)", "del x", "y = bytearray(80 << 20)").error is None


def test_time_is_counted_for_each_call_anew(loop):
    async def scenario():
        async with PythonSandbox(Limits(1.0, 128, 4096)) as sandbox, sandbox.session() as python:
            for _ in range(5):  # the CPU's too: more than one call may have
                burn = "import time\nend = time.monotonic() + 0.6\nwhile time.monotonic() < end: pass\nprint('ok')"
                assert (await python.run(burn)).output == "ok\n"
            assert (await python.run("while True: pass")).error == "timeout"

    loop.run(scenario())


LEFT_BEHIND = {
    "an alarm": "import signal\nsignal.signal(signal.SIGALRM, lambda *_: print('LATE'))\n"
    "_ = signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)",
    "an alarm of CPU time": "import signal\nsignal.signal(signal.SIGPROF, lambda *_: print('LATE'))\n"
    "_ = signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)",
    "an alarm that is pending": "import signal\nsignal.signal(signal.SIGALRM, lambda *_: print('LATE'))\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, [14])\nsignal.alarm(1)\nimport time\ntime.sleep(1.1)\n"
    "_ = signal.pthread_sigmask(signal.SIG_BLOCK, [])",
    "an exit handler": "import atexit\n_ = atexit.register(print, 'LATE')",
    "a trace": "import sys\nsys.settrace(lambda *_: sys.__stdout__.write('LATE'))",
    "a profile": "import sys\nsys.setprofile(lambda *_: sys.__stdout__.write('LATE'))",
    "another stdout": "import sys, io\nsys.stdout = io.StringIO()",
    "a thread": "import threading\nthreading.Thread(target=lambda: [print('LATE') for _ in iter(int, 1)]).start()",
    "a timer": "import threading\nthreading.Timer(0.05, print, ['LATE']).start()",
    "a child": "import os, time\nif os.fork() == 0:\n    while True: print('LATE')",
}


@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_nothing_left_behind_by_a_call_prints_into_a_later_one(run, what):
    later = "import time\nend = time.monotonic() + 0.3\nwhile time.monotonic() < end: pass\nprint('only this')"
    assert run(LEFT_BEHIND[what], later).output == "only this\n"


def test_print_may_be_replaced_for_ones_own_later_calls_only(run):
    assert run("print = lambda *_: None", "print(1)").output == ""
    assert run("print = lambda *_: None\nimport builtins\nbuiltins.print = None") and run("print(1)").output == "1\n"


def test_between_its_calls_a_process_is_stopped_whatever_it_says():
    """The code reports its end by itself and goes on computing: it is stopped in the middle of that."""

    async def scenario():
        before = children(os.getpid())
        async with PythonSandbox(PATIENT) as sandbox, sandbox.session() as python:
            server = the_server(before)
            await python.run("x = 0")
            result = await python.run(REPORT + "os.write(3, token + b'\\0')\nwhile True: x += 1")
            assert (result.error, result.state_lost) == (None, False)
            (child,) = children(server)
            assert state(child) == "T"
            used = cpu_ticks(child)
            await asyncio.sleep(0.3)
            assert (state(child), cpu_ticks(child)) == ("T", used)

    asyncio.run(scenario())


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return [int(ticks) for ticks in stat.read().rpartition(")")[2].split()[11:13]]


def test_a_report_forged_in_one_call_is_not_taken_for_the_end_of_another(loop):
    async def scenario():
        async with (
            PythonSandbox(PATIENT, concurrency=2) as sandbox,
            sandbox.session() as bad,
            sandbox.session() as good,
        ):
            await bad.run(REPORT + "os.write(3, token + b'\\0')\nimport time\ntime.sleep(0.2)\nprint('mine')")
            first, second = await asyncio.gather(bad.run("time.sleep(0.5)\nprint('next')"), good.run("print('yours')"))
            assert (first.error, first.state_lost) == ("crashed", True)  # its first call went on, and reported again
            assert second.output == "yours\n" and "yours" not in first.output

    loop.run(scenario())


def test_what_one_session_says_is_not_in_the_memory_that_another_is_copied_from(loop):
    """The server's, read from outside: it passes code and output on without keeping them."""
    before = children(os.getpid())

    async def scenario():
        secret = "".join(map(chr, b"hunter2-said-once")) + str(os.getpid())
        async with PythonSandbox(PATIENT, concurrency=4) as sandbox, sandbox.session() as python:
            server = the_server(before)
            for _ in range(3):
                assert secret in (await python.run(f"# {secret} as code\nprint('{secret}')")).output
            waiting = asyncio.create_task(sandbox.session().run(f"print('{secret}')\nimport time\ntime.sleep(60)"))
            await until(lambda: len(children(server)) == 2)
            await asyncio.sleep(0.3)  # it has printed, and its output waits in the server
            async with sandbox.session() as other:
                await other.run("1")
                newest = max(children(server))
                in_server, in_other = (occurrences(secret.encode(), pid) for pid in (server, newest))
            await python.close()
            waiting.cancel()
            return in_server, in_other

    try:
        in_server, in_other = loop.run(scenario())
    except PermissionError:
        pytest.skip("reading another process's memory needs CAP_SYS_PTRACE")
    assert in_server == 1, "so that the test can fail: the output that has not been answered yet"
    assert in_other == 0


def occurrences(text, pid):
    found = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if "w" in rights:
                begin, end = (int(side, 16) for side in span.split("-"))
                memory.seek(begin)
                try:
                    found += memory.read(end - begin).count(text)
                except OSError:  # [vvar]
                    continue
    return found


def test_a_closed_session_leaves_no_process_and_no_descriptor():
    async def scenario():
        before = children(os.getpid())
        async with PythonSandbox(PATIENT) as sandbox:
            server = the_server(before)
            await in_one_session(sandbox, "1")  # so that the trial of the start is over, and its descriptors closed
            await until(lambda: not children(server))
            descriptors = len(os.listdir(f"/proc/{server}/fd"))
            sessions = [sandbox.session() for _ in range(20)]
            await asyncio.gather(*[session.run("x = 1") for session in sessions])
            assert len(children(server)) == 20
            for session in sessions:
                await session.close()
                await session.close()  # twice: an episode may end in two ways at once
            await until(lambda: not children(server) and len(os.listdir(f"/proc/{server}/fd")) == descriptors)
            with pytest.raises(SandboxUnavailable, match="this session is closed"):
                await sessions[0].run("1")

    asyncio.run(scenario())


def test_closing_a_session_ends_the_call_that_runs():
    async def scenario():
        async with PythonSandbox(PATIENT) as sandbox:
            python = sandbox.session()
            call = asyncio.create_task(python.run("while True: pass"))
            await asyncio.sleep(0.3)
            begun = time.monotonic()
            await python.close()
            with pytest.raises(SandboxUnavailable, match="closed while its call waited or ran"):
                await call
            assert time.monotonic() - begun < 10

    asyncio.run(scenario())


def test_a_session_closed_while_its_first_call_waits_takes_no_place():
    async def scenario():
        before = children(os.getpid())
        async with PythonSandbox(PATIENT, concurrency=1) as sandbox:
            server = the_server(before)
            first, second = sandbox.session(), sandbox.session()
            running = asyncio.create_task(first.run("while True: pass"))
            await until(lambda: children(server))
            waiting = asyncio.create_task(second.run("1"))
            await asyncio.sleep(0.1)
            await second.close()
            await first.close()
            with pytest.raises(SandboxUnavailable, match="ran"):
                await running
            with pytest.raises(SandboxUnavailable, match="waited"):
                await waiting
            assert (await in_one_session(sandbox, "2")).output == "2\n"
            await until(lambda: not children(server))

    asyncio.run(scenario())


def test_a_cancelled_call_loses_the_variables_and_the_next_one_says_so():
    async def scenario():
        async with PythonSandbox(PATIENT) as sandbox, sandbox.session() as python:
            await python.run("x = 1")
            call = asyncio.create_task(python.run("while True: pass"))
            await asyncio.sleep(0.3)
            call.cancel()
            result = await python.run("'x' in dir()")
            assert (result.output, result.state_lost) == ("False\n", True)
            assert not (await python.run("1")).state_lost

    asyncio.run(scenario())


def test_a_process_that_ends_between_two_calls_is_missed_by_the_next():
    async def scenario():
        before = children(os.getpid())
        async with PythonSandbox(PATIENT) as sandbox, sandbox.session() as python:
            await python.run("x = 1")
            (child,) = children(the_server(before))
            os.kill(child, signal.SIGKILL)  # as the kernel does where memory runs out
            await until(lambda: state(child) == "")
            result = await python.run("'x' in dir()")
            assert (result.output, result.state_lost) == ("False\n", True)

    asyncio.run(scenario())


def test_variables_lost_with_the_fork_server_are_a_failure_of_the_tool_and_not_of_the_code():
    async def scenario():
        before = children(os.getpid())
        async with PythonSandbox(PATIENT) as sandbox, sandbox.session() as python:
            await python.run("x = 1")
            os.kill(the_server(before), signal.SIGKILL)
            with pytest.raises(SandboxUnavailable, match="begin the episode again") as error:
                await python.run("x")
            assert error.value.code == "LOST"
            assert (await in_one_session(sandbox, "x = 2", "x")).output == "2\n"

    asyncio.run(scenario())


def test_calls_of_one_session_wait_for_each_other(loop):
    async def scenario():
        async with PythonSandbox(PATIENT, concurrency=4) as sandbox, sandbox.session() as python:
            await python.run("x = 0")
            await asyncio.gather(*[python.run("y = x\nimport time\ntime.sleep(0.01)\nx = y + 1") for _ in range(5)])
            assert (await python.run("x")).output == "5\n"

    loop.run(scenario())


def test_code_larger_than_any_buffer_arrives_whole(run):
    assert run(f"x = '{'a' * 3_000_000}'", "len(x)").output == "3000000\n"


def test_the_kernel_takes_a_sessions_process_first_where_memory_runs_out():
    async def scenario():
        before = children(os.getpid())
        async with PythonSandbox(PATIENT) as sandbox, sandbox.session() as python:
            await python.run("1")
            (child,) = children(the_server(before))
            with open(f"/proc/{child}/oom_score_adj") as score:
                assert int(score.read()) == 1000

    asyncio.run(scenario())
