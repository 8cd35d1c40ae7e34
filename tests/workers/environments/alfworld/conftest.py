"""A game of each task type in a small room, made by the command that users have."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.data import file_problems


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """train/ and valid_unseen/."""
    if importlib.util.find_spec("alfworld") is None:
        pytest.skip("needs ALFWorld: pip install 'headrace[alfworld]'")
    folder = tmp_path_factory.mktemp("alfworld")
    command = [sys.executable, "-m", "pipeline.cli", "environments", "alfworld", str(folder)]
    subprocess.run([*command, "--train", "6", "--held-out", "1", "--receptacles", "3"], check=True, timeout=250)
    return folder


@pytest.fixture(scope="session")
def problems(folder) -> list[dict]:
    return file_problems(folder / "train")
