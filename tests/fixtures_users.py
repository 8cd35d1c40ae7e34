"""The users of docker/users.acl on a real server, and a ledger whose every call is made by the user whose call it is.

redis_users      role -> client of the session's server
LedgerOfUsers    reserve as worker, consume as trainer, reap as coordinator, and what only looks as viewer
"""

import contextlib
import functools
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from pipeline import ports
from pipeline.coordinator import Coordinator

DOCKER = Path(__file__).parent.parent / "docker"
CALLS = {
    "worker": "reserve occupy release renew",
    "trainer": "join consume peek fetch credit publish checkpoint",
    "coordinator": "add_prompts register_engine mark_engine remove_engine reap pause resume stop drain",
}
ROLES = (*CALLS, "viewer")


def password(role):
    return f"{role}-password-of-tests"


def users_acl(folder):
    """Redis's ACL file as the container makes it, with `password` for each role."""
    folder.mkdir(exist_ok=True)
    for role in ROLES:
        (folder / f"redis_{role}").write_text(password(role) + "\n")
    made = subprocess.run(
        ["sh", DOCKER / "users.sh", DOCKER / "users.acl", folder], capture_output=True, text=True, timeout=30
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


@pytest.fixture(scope="session")
def redis_users(redis_url, tmp_path_factory):
    lines = [line.split() for line in users_acl(tmp_path_factory.mktemp("secrets")).splitlines() if line]
    with redis.Redis.from_url(redis_url) as admin:
        for _, name, *rules in lines:
            if name != "default":  # the tests' own
                admin.execute_command("ACL", "SETUSER", name, *rules)
        with contextlib.ExitStack() as stack:
            yield {
                role: stack.enter_context(redis.Redis.from_url(redis_url, username=role, password=password(role)))
                for role in ROLES
            }
            for role in ROLES:
                admin.execute_command("ACL", "DELUSER", role)


@contextlib.contextmanager
def server_of_users(binary, folder, *arguments, tls=False):
    """The server of compose.yaml, on a free port of this machine: its settings, its users, and `admin`.

    tls: it speaks nothing else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "users").write_text(users_acl(folder / "secrets") + f"user admin on >{password('admin')} ~* &* +@all\n")
    port = ports.free()[0]
    (folder / "redis.conf").write_text((DOCKER / "redis.conf").read_text().replace("dir /data", f"dir {folder}"))
    listens = ["--port", "0", "--tls-port", str(port)] if tls else ["--port", str(port)]
    settings = [folder / "redis.conf", *listens, "--aclfile", folder / "users", "--logfile", folder / "log", *arguments]
    process = subprocess.Popen([binary, *settings])
    try:
        yield SimpleNamespace(port=port, folder=folder, process=process)
    finally:
        process.terminate()
        process.wait(20)


class ClientOfUsers:
    """A client that is, thread by thread, one of `users`."""

    def __init__(self, users):
        self.users, self._now = users, threading.local()

    @contextlib.contextmanager
    def acting(self, role):
        before, self._now.role = getattr(self._now, "role", "viewer"), role
        try:
            yield
        finally:
            self._now.role = before

    def __getattr__(self, name):
        return getattr(self.users[getattr(self._now, "role", "viewer")], name)


class LedgerOfUsers(Coordinator):
    """Its client is a ClientOfUsers."""


def _by(role, name):
    call = getattr(Coordinator, name)

    @functools.wraps(call)
    def made_by_its_user(self, *arguments, **named):
        with self.client.acting(role):
            return call(self, *arguments, **named)

    return made_by_its_user


for role, names in CALLS.items():
    for name in names.split():
        setattr(LedgerOfUsers, name, _by(role, name))
