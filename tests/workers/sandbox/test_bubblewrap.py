"""Where the kernel lacks a layer, bubblewrap holds the fork server. These lack it by a filter that they inherit."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.workers.sandbox.test_life import LACKING, WORKER, children, gone
from workers.sandbox import bubblewrap

LANDLOCK = LACKING.replace("RULE", "444")
SECCOMP = LACKING.replace("RULE", "'prctl', pyseccomp.Arg(0, pyseccomp.EQ, 22)")
needs_bubblewrap = pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap: apt-get install bubblewrap")


def test_the_command_shares_nothing_and_binds_only_what_python_needs_and_read_only(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    command = bubblewrap.command()
    assert command[0] == "/usr/bin/bwrap" and command[-1] == "--"
    assert {"--unshare-all", "--die-with-parent", "--new-session"} <= set(command)
    assert command[command.index("--cap-drop") + 1] == "ALL"
    assert not [word for word in command if "share-net" in word or word.startswith(("--bind", "--dev-bind"))]
    bound = {command[i + 1] for i, word in enumerate(command) if word == "--ro-bind-try"}
    outside = {path for path in bound if not path.startswith(("/usr", "/lib", "/bin", "/sbin", "/etc/ld.so.cache"))}
    ours = {str(bubblewrap.PACKAGE / name) for name in ("workers", "pipeline", "advantage")}
    assert outside <= ours | {sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    assert str(Path.home()) not in bound and "/" not in bound


def test_without_bubblewrap_there_is_no_command(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert bubblewrap.command() == []


@needs_bubblewrap
def test_bubblewrap_is_chosen_by_itself_and_the_log_says_so():
    program = LANDLOCK + WORKER.replace("CODE", "print(6 * 7)")
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "the Python tool is confined by bubblewrap and seccomp; missing: Landlock" in told.stdout, told
    assert "42\n None" in told.stdout and "UNCONFINED" not in told.stdout


@needs_bubblewrap
def test_without_seccomp_it_is_used_where_the_limits_bind_the_user():
    readable = all(folder.stat().st_mode & 1 for folder in Path(os.path.realpath(sys.executable)).parents)
    if os.geteuid() == 0 and not readable:
        pytest.skip(f"nobody cannot read {os.path.realpath(sys.executable)}, and none of the limits binds root")
    program = SECCOMP + WORKER.replace("CODE", "print(6 * 7)")
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "the Python tool is confined by bubblewrap" in told.stdout and "42\n None" in told.stdout, told


ATTEMPTS = {
    "read /etc/passwd": "open('/etc/passwd')",
    "read what everybody may": "open(SECRET)",
    "read a host's file through /proc": "open('/proc/1/root/etc/passwd')",
    "see the host's processes": "len([n for n in os.listdir('/proc') if n.isdigit()]) > 8 and print('ESCAPED')",
    "read another's environment": "open(f'/proc/{os.getppid()}/environ')",
    "read another's memory": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "write": "open('/tmp/headrace-escape', 'w')",
    "connect": "__import__('socket').create_connection(('127.0.0.1', PORT))",
    "fork": "os.fork() and print('ESCAPED')",
    "signal": "os.kill(os.getppid(), 9)",
    "trace": "ctypes.CDLL(None, use_errno=True).ptrace(16, os.getppid(), 0, 0) == 0 and print('ESCAPED')",
}
ESCAPING = """
import asyncio, json, sys
from workers.sandbox import Limits, PythonSandbox
async def main():
    found = {}
    async with PythonSandbox(Limits(20.0, 256, 4096)) as sandbox, sandbox.session() as python:
        await python.run("import ctypes, os")
        for name, code in json.loads(sys.argv[1]).items():
            result = await python.run(code)
            found[name] = [result.output, result.state_lost]
    print(json.dumps(found))
asyncio.run(main())
"""


@needs_bubblewrap
def test_inside_there_is_no_host(tmp_path):
    (tmp_path / "secret").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        places = {"PORT": str(server.getsockname()[1]), "SECRET": repr(str(tmp_path / "secret"))}
        attempts = dict(ATTEMPTS)
        for name in attempts:
            for place, value in places.items():
                attempts[name] = attempts[name].replace(place, value)
        told = subprocess.run(
            [sys.executable, "-c", LANDLOCK + ESCAPING, json.dumps(attempts)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()
    found = json.loads(told.stdout.splitlines()[-1])
    assert found.keys() == ATTEMPTS.keys()
    assert {name: said for name, said in found.items() if "ESCAPED" in said[0] or said[1]} == {}
    refused = {name for name, said in found.items() if "Error" in said[0]}
    assert refused >= ATTEMPTS.keys() - {"see the host's processes", "trace"}, found
    assert not os.path.lexists("/tmp/headrace-escape")


@needs_bubblewrap
def test_nothing_inside_survives_a_killed_worker():
    program = LANDLOCK + WORKER.replace("CODE", "while True: pass")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as worker:
        assert b"started\n" in iter(worker.stdout.readline, b"")
        end = time.monotonic() + 20
        while (
            len(processes := below(worker.pid)) < 5 and time.monotonic() < end
        ):  # two of bubblewrap, server, two calls
            time.sleep(0.01)
        assert len(processes) == 5
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert gone(processes)


def below(pid):
    return [one for child in children(pid) for one in (child, *below(child))]
