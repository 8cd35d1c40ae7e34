"""`headrace top` on a pipe, and on a real terminal of 80×24."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
import redis

from pipeline.config_file import load
from pipeline.coordinator import Coordinator
from pipeline.run_folder import open_folder
from tests.waiting import wait_for


@pytest.fixture
def ledger(headrace, redis_url, run):
    headrace("init", run, "--recipe", "demo")
    config = load(f"{run}.toml")
    open_folder(config)
    with redis.Redis.from_url(redis_url) as client:
        yield Coordinator.create(client, run, config.ledger_settings)
        client.flushdb()


def test_on_a_pipe_one_picture_is_printed(headrace, ledger, redis_url):
    code, out, _ = headrace("top", "--redis", redis_url)
    assert code == 0
    assert f"headrace · {ledger.run}" in out and "version 0 of 60" in out


def test_a_run_without_a_redis_is_one_sentence(headrace):
    headrace("init", "mine", "--recipe", "demo")
    code, out, _ = headrace("top", "mine")
    assert code == 0 and "`headrace up` starts mine" in out


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_on_a_terminal_it_goes_on_until_q_or_ctrl_c(ledger, redis_url, key):
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    argv = [sys.executable, "-m", "pipeline.cli", "top", ledger.run, "--redis", redis_url]
    process = subprocess.Popen(
        argv,
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C reaches who has the terminal
        env=os.environ | {"TERM": "xterm-256color"},
    )
    os.close(terminal)
    shown = bytearray()

    def begun():
        shown.extend(os.read(main, 65536))
        return b"version 0 of 60" in shown

    try:
        wait_for(begun)
        os.write(main, key)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(main)
