import errno

import pytest
import redis

from pipeline.errors import ConfigError, LedgerError, OtherSettings
from pipeline.program import run


def raising(error):
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("data.size: no"), 2),
        (OtherSettings("other settings"), 2),
        (LedgerError("no"), 1),
        (redis.TimeoutError("slow"), 1),
        (OSError(errno.ENOSPC, "No space left on device", "/run/metrics.jsonl"), 1),
    ],
)
def test_what_ends_a_program_is_one_message_and_a_code(error, code, capsys):
    with pytest.raises(SystemExit) as ended:
        run(raising(error))
    assert ended.value.code == code
    assert str(error) in capsys.readouterr().err


def test_a_process_with_another_roles_user_is_told_so(capsys):
    with pytest.raises(SystemExit):
        run(raising(redis.exceptions.NoPermissionError("User viewer has no permissions to run the 'evalsha' command")))
    assert "give it the user of its role in REDIS_URL" in capsys.readouterr().err


def test_only_the_first_rank_says_it(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as ended:
        run(raising(LedgerError("no")))
    assert ended.value.code == 1 and not capsys.readouterr().err


def test_a_program_that_ends_exits_with_0_and_a_mistake_keeps_its_traceback():
    with pytest.raises(SystemExit) as ended:
        run(lambda: None)
    assert ended.value.code == 0
    for mistake in (ZeroDivisionError("ours"), FileNotFoundError(errno.ENOENT, "No such file", "x")):
        with pytest.raises(type(mistake)):
            run(raising(mistake))
