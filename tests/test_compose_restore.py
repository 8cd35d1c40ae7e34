"""`make restore`: what docker is told, in which order. tests/stack does it for real."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCKER = """#!/bin/sh
echo "$*" >> calls
case "$*" in
  "compose ps --all --quiet") cat up ;;
  *--detach*redis-server*) echo the-redis ;;
  *" coordinator restore "*) exit "$(cat code)" ;;
esac
"""


@pytest.fixture
def restore(tmp_path):
    """A function: how `make restore` ended, and what it told a `docker` that does nothing else than write that down."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "demo.tar").touch()

    def run(file="demo.tar", up="", code=0):
        for name, content in {"calls": "", "up": up, "code": str(code)}.items():
            (tmp_path / name).write_text(content)
        done = subprocess.run(
            ["make", "restore", f"FILE={file}"],
            env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done, (tmp_path / "calls").read_text().splitlines()

    return run


@pytest.mark.parametrize("code", [0, 1])
def test_redis_has_no_users_while_a_run_is_restored_and_ends_whether_that_succeeds_or_not(restore, tmp_path, code):
    done, (_, redis, coordinator, stop) = restore(code=code)
    assert bool(done.returncode) == bool(code)
    assert redis == "compose run --detach --rm --use-aliases redis redis-server /etc/headrace/redis.conf"
    options, _, restored = coordinator.partition(" coordinator ")
    assert f"--env REDIS_PASSWORD_FILE= --volume {tmp_path}/demo.tar:/backup.tar:ro" in options
    assert restored == "restore /backup.tar --folder /runs --redis redis://redis:6379/0"
    assert stop == "stop the-redis"


def test_no_second_redis_is_started_beside_that_of_a_stack_that_is_up(restore):
    done, calls = restore(up="0123456789ab\n")
    assert done.returncode and "first: docker compose down" in done.stderr and len(calls) == 1


@pytest.mark.parametrize("file", ["", "other.tar"])
def test_a_backup_that_is_not_there_is_asked_for_before_anything_starts(restore, file):
    done, calls = restore(file)
    assert done.returncode and f"expected what headrace backup wrote, found no file '{file}'" in done.stderr
    assert not calls
