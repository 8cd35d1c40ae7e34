"""The log of every process of a run: one line an event, as key=value (logfmt) or as JSON: log.format.

    log.info("serves version %d", 3, extra={"engine": "engine-0"})
      ─▶ time=2026-07-01T12:00:00.123Z level=info run=demo process=coordinator event="serves version 3" engine=engine-0

What a person reads on a terminal is the event alone: `event_of` takes it out of such a line. No secret is written, by
secrets.py; and the text of prompts and replies is no part of any event of ours.
"""

import json
import logging
import os
import re
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pipeline.secrets import masked

if TYPE_CHECKING:
    from pipeline.config import Config

OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}  # attributes of a record; the rest is extra
EVENT = re.compile(r'^time=.*? event=("(?:[^"\\]|\\.)*"|\S*)')

log = logging.getLogger(__name__)


def set_up(config: "Config", process: str) -> None:
    """From here on, all that this process, one rank or one of several, logs is in the run's format.

    Warnings are events too, and so is the error that ends the process, where a line must be JSON.
    """
    facts = {"run": config.run.name, "process": process}
    if rank := os.environ.get("RANK"):
        facts["rank"] = rank
    handler = logging.StreamHandler()
    handler.setFormatter(Lines(config.log.format, facts))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    if config.log.format == "json":
        sys.excepthook = _unforeseen


def is_set_up() -> bool:
    return any(isinstance(handler.formatter, Lines) for handler in logging.root.handlers)


class Lines(logging.Formatter):
    """facts: what every line says of its process."""

    def __init__(self, form: str, facts: dict[str, Any]):
        super().__init__()
        self._form, self._facts = form, facts

    def format(self, record: logging.LogRecord) -> str:
        said = {"time": _utc(record.created), "level": record.levelname.lower(), **self._facts}
        said["event"] = record.getMessage().rstrip()
        said |= {name: value for name, value in vars(record).items() if name not in OWN}
        if record.exc_info and record.exc_info[0] is not None:
            said["traceback"] = self.formatException(record.exc_info)
        said = masked(said)
        if self._form == "json":
            return _json(said)
        return " ".join(f"{name}={_value(value)}" for name, value in said.items())


def event_of(line: str) -> str:
    """What happened, without when and where; a line that is no event stays as it is."""
    try:
        if line.startswith("{"):
            return json.loads(line)["event"]
        if found := EVENT.match(line):
            return json.loads(found[1]) if found[1].startswith('"') else found[1]
    except (ValueError, KeyError):
        pass
    return line


def _unforeseen(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))


def _utc(seconds: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds * 1000) % 1000:03}Z"


def _value(value: Any) -> str:
    """As logfmt has it: quoted, as in JSON, if it would not be one word."""
    text = str(value)
    return text if re.fullmatch(r"[!-~]+", text) and not re.search(r'["=\\]', text) else _json(text)


def _json(value: Any) -> str:
    """In one line of what can be seen: no escape sequence of a terminal, no other end of a line."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in json.dumps(value, ensure_ascii=False))
