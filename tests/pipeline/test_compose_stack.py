"""`headrace workers scale N` against docker compose: what it is told, in which order. tests/stack does it for real."""

import json
import os

import pytest

from pipeline import compose_stack
from pipeline.errors import HeadraceError

DOCKER = """#!/bin/sh
echo "$*" >> "$CALLS"
case "$*" in
  "compose ps --quiet"*) cat "$COORDINATOR" ;;
  "compose ps --all"*) cat "$WORKERS" ;;
  *drain*)
    [ ! -e "$CALLS.unknown" ] || { sed -i 's/"running"/"exited"/' "$WORKERS"; echo "no worker '$8'" >&2; exit 1; }
    sed -i "s/\\"running\\"\\(.*${8#worker-}\\)/\\"exited\\"\\1/" "$WORKERS" ;;
  *--scale*) [ ! -e "$CALLS.refuse" ] || { echo "no room" >&2; exit 1; } ;;
esac
"""


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A `docker` on PATH that writes down what it is told; its workers are the lines of a file."""
    program = tmp_path / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name in ("CALLS", "WORKERS", "COORDINATOR"):
        (tmp_path / name).write_text("")
        monkeypatch.setenv(name, str(tmp_path / name))

    def has(count):
        rows = [{"State": "running", "Name": f"headrace-worker-{n}", "ID": f"{n:012x}ff"} for n in range(1, count + 1)]
        (tmp_path / "WORKERS").write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
        return tmp_path

    return has


def calls(folder):
    return [line for line in (folder / "CALLS").read_text().splitlines() if " ps " not in line]


def test_more_workers_are_one_word_to_compose(docker):
    folder = docker(3)
    answer = compose_stack.scale(5)
    assert calls(folder) == ["compose up --detach --no-deps --no-recreate --scale worker=5 worker"]
    assert answer["before"] == ["worker-000000000001", "worker-000000000002", "worker-000000000003"]


def test_fewer_workers_drain_the_last_ones_before_compose_removes_them(docker):
    folder = docker(12)
    answer = compose_stack.scale(10)
    first, second, last = calls(folder)
    assert first.endswith("worker-00000000000b") and second.endswith("worker-00000000000c")
    assert "exec -T coordinator" in first and "workers drain" in first
    assert last.endswith("--scale worker=10 worker")
    assert answer["message"].startswith("workers: 12 → 10")


def test_a_worker_that_has_ended_already_counts_as_one_that_compose_keeps(docker):
    folder = docker(4)
    lines = (folder / "WORKERS").read_text().splitlines()
    lines[-1] = lines[-1].replace("running", "exited")  # number 1
    (folder / "WORKERS").write_text("\n".join(lines) + "\n")
    compose_stack.scale(2)
    assert [line.split()[-1] for line in calls(folder) if "drain" in line] == [
        "worker-000000000003",
        "worker-000000000004",
    ]


def test_a_worker_that_the_ledger_does_not_know_yet_has_nothing_to_finish(docker):
    folder = docker(3)
    (folder / "CALLS.unknown").touch()
    compose_stack.scale(2)
    assert calls(folder)[-1].endswith("--scale worker=2 worker")


def test_what_compose_complains_of_is_said(docker):
    folder = docker(1)
    (folder / "CALLS.refuse").touch()
    with pytest.raises(HeadraceError, match="no room"):
        compose_stack.scale(2)


def test_a_stack_is_up_when_its_coordinator_is(docker, monkeypatch):
    folder = docker(1)
    assert not compose_stack.is_up()
    (folder / "COORDINATOR").write_text("0123456789ab\n")
    assert compose_stack.is_up()
    monkeypatch.setenv("PATH", "")
    assert not compose_stack.is_up()


def test_the_command_scales_the_stack_where_no_run_is_up(docker, headrace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = docker(1)
    (folder / "COORDINATOR").write_text("0123456789ab\n")
    code, out, err = headrace("workers", "scale", "2", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["workers"] == ["worker-000000000001"]
    assert calls(folder) == ["compose up --detach --no-deps --no-recreate --scale worker=2 worker"]
