"""The command line in this process: `headrace`, in a folder where no run is yet, and no Redis of the environment."""

import sys

import pytest

from pipeline.cli import main


@pytest.fixture
def headrace(tmp_path, monkeypatch, capsys):
    """Call the command line; answers (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDIS_URL", raising=False)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return left.value.code or 0, out, err

    return call
