"""`headrace environments check`, as a user starts it: it becomes another process."""

import json
import os
import subprocess
import sys
from pathlib import Path

GUESS = f"{Path(__file__).parents[1]}/workers/guess_the_number.py:GuessTheNumber"


def check(folder, *arguments, **variables):
    argv = [sys.executable, "-m", "pipeline.cli", "environments", "check", *arguments]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, env=os.environ | variables)


def test_one_line_a_rule_and_the_exit_code_says_whether_all_are_kept(tmp_path):
    (tmp_path / "numbers.jsonl").write_text('{"question": "1 to 9?", "number": 7}\n')
    kept = check(tmp_path, GUESS, "--data", "numbers.jsonl", "--option", "hints=false")
    assert kept.returncode == 0, kept.stderr
    lines = kept.stdout.splitlines()
    assert len(lines) == 11 and all(line.startswith("ok  ") for line in lines)

    broken = check(tmp_path, GUESS, "--json")
    assert broken.returncode == 1
    assert "KeyError: 'number'" in list(json.loads(broken.stdout).values())[-1]


def test_data_of_the_hub_is_asked_for_there(tmp_path):
    """Nobody listens at that address; offline it would not have been tried."""
    hub = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    tried, forbidden = (check(tmp_path, GUESS, "--data", "hf:no-such/set", HF_HUB_OFFLINE=n, **hub) for n in "01")
    assert tried.returncode == forbidden.returncode == 2
    assert "HF_HUB_OFFLINE" not in tried.stderr.splitlines()[-1] and "HF_HUB_OFFLINE forbids" in forbidden.stderr


def test_what_cannot_be_loaded_is_one_message(tmp_path):
    missing = check(tmp_path, "none.py:Mine")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "no file none.py" in missing.stderr and "Traceback" not in missing.stderr
    option = check(tmp_path, GUESS, "--option", "hints=")
    assert option.returncode == 2 and "expected KEY=VALUE in TOML" in option.stderr
