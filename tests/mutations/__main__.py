"""Whether the tests would notice: `python -m tests.mutations [WORD …]`. By hand; some minutes.

    copy of the tree ──its named tests pass──▶ one mutation ──▶ its named test fails: caught
                                                   ▲         └▶ passes: SURVIVED, exit status 1
                                                   └── taken back ──┘

With words, only the mutations whose title has one of them. A patch that no longer applies is an error that says so.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutations import of_advantage, of_checkpoints, of_numerics, of_pipeline, of_trainer, of_workers
from tests.mutations.mutation import ROOT, Mutation, patched

ROOMS = (of_advantage, of_checkpoints, of_numerics, of_pipeline, of_trainer, of_workers)
MUTATIONS = [mutation for room in ROOMS for mutation in room.MUTATIONS]
FOLDERS = ["advantage", "pipeline", "trainer", "workers", "tests", "docker"]


def main(words: list[str]) -> int:
    chosen = [m for m in MUTATIONS if not words or any(word in m.title for word in words)]
    for mutation in chosen:
        patched(mutation, ROOT)
    with tempfile.TemporaryDirectory(prefix="headrace-mutations-") as folder:
        copy = Path(folder)
        for name in FOLDERS:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        status, output = run_tests(copy, sorted({m.test for m in chosen}))
        if status:
            print(f"the tests fail without any mutation already:\n{output[-3000:]}")
            return 2
        survivors = [m for m in chosen if not caught(copy, m)]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations were caught")
    return 1 if survivors else 0


def caught(copy: Path, mutation: Mutation) -> bool:
    path = copy / mutation.path
    whole = path.read_text()
    path.write_text(patched(mutation, copy))
    try:
        status, output = run_tests(copy, [mutation.test, "-x"])
    finally:
        path.write_text(whole)
    by = re.search(r"^FAILED (\S+)", output, re.MULTILINE)
    if status and not by:  # an error outside of the tests: they could not even be run
        raise SystemExit(f"{mutation.title}: pytest ended with status {status}:\n{output[-3000:]}")
    print(f"{mutation.title:<62} {by[1].split('::')[-1] if by else 'SURVIVED ' + mutation.test}", flush=True)
    return status == 1


def run_tests(copy: Path, arguments: list[str]) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *arguments],
        cwd=copy,
        # a changed file of the same size and second would not be compiled again
        env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
