"""The command line in this process: `headrace`, in a folder where no run is yet, and no Redis of the environment."""

import logging
import sys

import pytest

from pipeline.cli import main


@pytest.fixture
def headrace(tmp_path, monkeypatch, capsys):
    """Call the command line; answers (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDIS_URL", raising=False)
    handlers, level = logging.root.handlers[:], logging.root.level

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return left.value.code or 0, out, err

    yield call
    logging.root.handlers[:] = handlers  # a command that is a process of a run logs to this test's standard error
    logging.root.setLevel(level)
    logging.captureWarnings(False)
