"""Files of one JSON object a line, which any process may be killed in the middle of writing.

{"version": 1, …}⏎
{"version": 2, …}⏎      read: whole lines only
{"versi                 torn: never read, cut off by whoever appends next
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.errors import HeadraceError

CHUNK = 4096


def read(path: Path | str) -> list[dict[str, Any]]:
    """The records of the whole lines; [] if the file is missing. Raises HeadraceError for a line that is no object."""
    try:
        lines = Path(path).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [_record(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def append(path: Path | str, record: dict[str, Any]) -> None:
    """Add one line; a torn end is cut off first."""
    with appending(path) as file:
        file.write(as_line(record))


@contextmanager
def appending(path: Path | str) -> Iterator[BinaryIO]:
    """The file, locked against other writers and at the end of its last whole line; it is flushed in the end."""
    with open(path, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _seek_line(file, file.seek(0, os.SEEK_END))
        file.truncate()
        yield file
        file.flush()


def last(file: BinaryIO) -> dict[str, Any] | None:
    """The last record of a file from `appending`, without reading the others; None if there is none."""
    end = file.seek(0, os.SEEK_END)
    if not end:
        return None
    start = _seek_line(file, end - 1)
    record = _record(file.read(end - start), f"{file.name}, last line")
    file.seek(end)
    return record


def as_line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _seek_line(file: BinaryIO, end: int) -> int:
    """Go to just behind the last line feed before `end`."""
    start, found = end, -1
    while start > 0 and found < 0:
        stop, start = start, max(0, start - CHUNK)
        file.seek(start)
        found = file.read(stop - start).rfind(b"\n")
    return file.seek(start + found + 1)


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:  # not JSON, or no text at all
        record = None
    if not isinstance(record, dict):
        raise HeadraceError(f"{where}: expected a JSON object, found {line[:80]!r}: mend or delete this line")
    return record
