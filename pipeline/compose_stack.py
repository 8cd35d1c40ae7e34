"""The workers of a stack that docker compose runs, scaled with the command that scales those of a local run.

headrace workers scale N ──▶ docker compose ps worker      more: docker compose up --scale worker=N
                                                           fewer: those with the highest numbers, which compose
                                                           removes, are drained and waited for before that
"""

import json
import shutil
import subprocess
import time
from typing import Any, NamedTuple

from pipeline.errors import HeadraceError

LOOK_S = 60.0  # for compose to say what it runs
CHANGE_S = 300.0  # for compose to start or to remove containers
DRAIN_S = 600.0  # for the episodes of those that are to go; what is unfinished then is released, and done by others
POLL_S = 1.0
DRAIN = 'headrace workers drain "$0" --run "$HEADRACE_RUN"'


class Worker(NamedTuple):
    number: int  # compose's; the highest goes first
    name: str  # in the ledger
    runs: bool


def is_up() -> bool:
    """Whether the compose file that `docker compose` finds here has a coordinator that runs."""
    if shutil.which("docker") is None:
        return False
    try:
        found = subprocess.run(
            ["docker", "compose", "ps", "--quiet", "coordinator"], capture_output=True, text=True, timeout=LOOK_S
        )
    except subprocess.TimeoutExpired:
        return False
    return found.returncode == 0 and bool(found.stdout.strip())


def workers() -> list[Worker]:
    """By their numbers."""
    lines = _compose(LOOK_S, "ps", "--all", "--format", "json", "worker").splitlines()
    found = [json.loads(line) for line in lines if line.strip()]
    return sorted(
        Worker(int(row["Name"].rpartition("-")[2]), f"worker-{row['ID'][:12]}", row["State"] == "running")
        for row in found
    )


def scale(count: int) -> dict[str, Any]:
    """Have `count` workers; those too many finish what they have first. Raises HeadraceError with compose's words."""
    found = workers()
    before = [worker for worker in found if worker.runs]
    if leaving := [worker for worker in found[count:] if worker.runs]:
        for worker in leaving:
            _drain(worker)
        _wait_until_ended({worker.name for worker in leaving})
    _compose(CHANGE_S, "up", "--detach", "--no-deps", "--no-recreate", "--scale", f"worker={count}", "worker")
    names = [worker.name for worker in workers() if worker.runs]
    message = f"workers: {len(before)} → {len(names)}, in the stack of docker compose"
    return {"message": message, "before": [worker.name for worker in before], "workers": names}


def _drain(worker: Worker) -> None:
    try:
        _compose(LOOK_S, "exec", "-T", "coordinator", "sh", "-c", DRAIN, worker.name)
    except HeadraceError as error:
        if "no worker" not in str(error):  # one that has not reserved yet has nothing to finish: SIGTERM is enough
            raise


def _wait_until_ended(names: set[str]) -> None:
    deadline = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline and any(worker.runs for worker in workers() if worker.name in names):
        time.sleep(POLL_S)


def _compose(timeout_s: float, *arguments: str) -> str:
    command = ["docker", "compose", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise HeadraceError(f"`{' '.join(command[:4])} …` was not done within {timeout_s:g} s") from None
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise HeadraceError(f"`{' '.join(command[:4])} …` failed: {said}")
    return done.stdout
