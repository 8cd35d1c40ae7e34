"""`headrace environments check`, as a user starts it: it becomes another process."""

import json
import subprocess
import sys
from pathlib import Path

GUESS = f"{Path(__file__).parents[1]}/workers/guess_the_number.py:GuessTheNumber"


def check(folder, *arguments):
    argv = [sys.executable, "-m", "pipeline.cli", "environments", "check", *arguments]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120)


def test_one_line_a_rule_and_the_exit_code_says_whether_all_are_kept(tmp_path):
    (tmp_path / "numbers.jsonl").write_text('{"question": "1 to 9?", "number": 7}\n')
    kept = check(tmp_path, GUESS, "--data", "numbers.jsonl", "--option", "hints=false")
    assert kept.returncode == 0, kept.stderr
    lines = kept.stdout.splitlines()
    assert len(lines) == 11 and all(line.startswith("ok  ") for line in lines)

    broken = check(tmp_path, GUESS, "--json")
    assert broken.returncode == 1
    assert "KeyError: 'number'" in list(json.loads(broken.stdout).values())[-1]


def test_what_cannot_be_loaded_is_one_message(tmp_path):
    missing = check(tmp_path, "none.py:Mine")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "no file none.py" in missing.stderr and "Traceback" not in missing.stderr
    option = check(tmp_path, GUESS, "--option", "hints=")
    assert option.returncode == 2 and "expected KEY=VALUE in TOML" in option.stderr
