import json
import logging
import re
import subprocess
import sys

import pytest

from pipeline.log import Lines, event_of
from pipeline.secrets import REDIS_PASSWORD

FACTS = {"run": "demo", "process": "worker-0"}


def line(form, text, *arguments, error=None, **extra):
    told = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("workers.worker", logging.WARNING, "worker.py", 7, text, arguments, told)
    vars(record).update(extra)
    return Lines(form, FACTS).format(record)


def raised():
    try:
        raise ValueError('no "such"\nthing')
    except ValueError as error:
        return error


def test_an_event_is_key_and_value_with_when_and_where():
    found = line("text", "entry given back: %s", "it is late", entry="3fa9", attempt=2)
    assert re.fullmatch(
        r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=warning run=demo process=worker-0 "
        r'event="entry given back: it is late" entry=3fa9 attempt=2',
        found,
    )


def test_or_an_object_of_json_with_the_same():
    found = json.loads(line("json", "entry given back: %s", "it is late", entry="3fa9", attempt=2))
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "warning",
        **FACTS,
        "event": "entry given back: it is late",
        "entry": "3fa9",
        "attempt": 2,
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_event_is_one_line_whatever_is_in_it(form):
    found = line(form, "first\nsecond", error=raised(), why='a="b"\n')
    assert "\n" not in found and "ValueError" in found and "test_log.py" in found


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("event", ["word", "two words", 'it said "no" = never\nand ended', "π ≥ 3", "event=x", ""])
def test_a_person_is_shown_the_event_alone(form, event):
    assert event_of(line(form, "%s", event, entry="3fa9")) == event


@pytest.mark.parametrize("other", ["Traceback (most recent call last):", "{not json", '{"no": 1}', "", "time=now"])
def test_what_is_no_event_is_shown_as_it_is(other):
    assert event_of(other) == other


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_password_is_written(form, monkeypatch):
    monkeypatch.setenv(REDIS_PASSWORD, "s3cret-of-the-environment")
    found = line(form, "%s", "redis://worker:s3cret@redis:6379 refuses s3cret-of-the-environment", url="x://u:s3cret@h")
    assert "s3cret" not in found and "redis://worker:***@redis:6379" in found


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_password_that_must_be_quoted_is_written_neither(form, monkeypatch):
    monkeypatch.setenv(REDIS_PASSWORD, 'pa"ss\\word')
    found = line(form, "%s", 'AUTH worker pa"ss\\word', nested={"given": ['pa"ss\\word']})
    assert "ss" not in found.replace("process", "") and event_of(found) == "AUTH worker ***"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("c", ["\x1b[2J", "\x7f", "\x85", "\x9b", "\u2028", "\u202e", "\U000e0001", "\udc80"])
def test_nothing_that_steers_a_terminal_or_ends_a_line_is_written(form, c):
    found = line(form, "a%sb", c, word=c)
    assert found.isprintable() and found.splitlines() == [found] and event_of(found) == f"a{c}b"
    assert form == "text" or json.loads(found)["word"] == c


PROGRAM = """
import logging, sys, warnings
from pathlib import Path
from pipeline import program
from pipeline.config_file import load
from pipeline.errors import HeadraceError
from pipeline.log import set_up

def main():
    set_up(load(sys.argv[1], ["log.format=" + sys.argv[2]]), "trainer")
    logging.getLogger("x").info("begins")
    warnings.warn("of a library")
    if sys.argv[3] == "error":
        raise HeadraceError("it ended: expected one,\\nfound two")
    if sys.argv[3] == "mistake":
        raise ZeroDivisionError("ours")

program.run(main)
"""


def events_of(form, how, tmp_path, **environment):
    (tmp_path / "run.toml").write_text('[run]\nname = "demo"\n[model]\npath = "m"\n[data]\npath = "d.jsonl"\n')
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run.toml"), form, how]
    ended = subprocess.run(command, env={"PATH": "/bin", **environment}, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stderr.splitlines()


def test_a_process_writes_lines_of_json_to_its_last_word(tmp_path):
    for how, code, last in [
        ("error", 1, "it ended: expected one,\nfound two"),
        ("mistake", 1, "ZeroDivisionError: ours"),
    ]:
        returned, lines = events_of("json", how, tmp_path, RANK="0")
        found = [json.loads(each) for each in lines]
        assert returned == code and {each["process"] for each in found} == {"trainer"}
        assert {each["rank"] for each in found} == {"0"}
        assert [each["level"] for each in found] == ["info", "warning", "critical"]
        assert found[0]["event"] == "begins" and "of a library" in found[1]["event"] and found[2]["event"] == last


def test_as_text_an_error_is_the_last_event_and_a_mistake_keeps_its_traceback(tmp_path):
    code, lines = events_of("text", "error", tmp_path)
    assert code == 1 and lines[-1].endswith(
        'level=critical run=demo process=trainer event="it ended: expected one,\\nfound two"'
    )
    code, lines = events_of("text", "mistake", tmp_path)
    assert code == 1 and lines[-1] == "ZeroDivisionError: ours" and "Traceback (most recent call last):" in lines
