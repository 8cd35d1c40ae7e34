"""The file of a backup: a tar, which any tool lists and unpacks, and `sha256sum -c SHA256SUMS` checks.

    demo/backup.json           whose, of when, and in which form                    always the first
    demo/keys/00000.msgpack    the run's keys in Redis, as commands that make them: pipeline/ledger_copy.py
    demo/run.toml, demo/checkpoints/30/…, demo/weights/…                            its folder
    demo/SHA256SUMS            of all the others                                    always the last

It is written and read from front to back, and no more than a part of it is ever held.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import msgpack

from pipeline.config_sections import NAME
from pipeline.errors import HeadraceError

ABOUT, SUMS, KEYS = "backup.json", "SHA256SUMS", "keys"
FORM = 1  # of this file
PART_BYTES = 1 << 24  # of keys; a single command may be larger
COPIED_BYTES = 1 << 20


class BadBackup(HeadraceError, ValueError):
    """A file that is no whole backup."""

    code = "BACKUP"


class Writer:
    """Writes into `file`, whose top folder is `root`."""

    def __init__(self, file: BinaryIO, root: str, about: dict[str, Any]):
        self._tar, self._root, self._sums = tarfile.TarFile(mode="w", fileobj=file), root, {}
        self._add(ABOUT, json.dumps({"form": FORM} | about, indent=1).encode())

    def add_keys(self, commands: Iterable[list[Any]]) -> None:
        packer, part, number = msgpack.Packer(), bytearray(), 0
        for command in commands:
            part += packer.pack(command)
            if len(part) >= PART_BYTES:
                self._add(f"{KEYS}/{number:05}.msgpack", bytes(part))
                part, number = bytearray(), number + 1
        self._add(f"{KEYS}/{number:05}.msgpack", bytes(part))

    def add_file(self, name: str, file: BinaryIO) -> None:
        """What it holds now; what is appended meanwhile is left out. A file that was added under another name becomes a
        link to that, as it is on the disk."""
        entry = self._tar.gettarinfo(arcname=f"{self._root}/{name}", fileobj=file)
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        if entry.islnk():
            self._tar.addfile(entry)
            self._sums[name] = self._sums[entry.linkname.removeprefix(f"{self._root}/")]
            return
        hashed = _Hashed(file)
        self._tar.addfile(entry, hashed)
        self._sums[name] = hashed.hexdigest()

    def finish(self) -> dict[str, str]:
        """Returns name -> sha256 of all that was added."""
        lines = "".join(f"{digest}  {name}\n" for name, digest in self._sums.items())
        self._add(SUMS, lines.encode())
        self._tar.close()
        return self._sums

    def _add(self, name: str, data: bytes) -> None:
        entry = tarfile.TarInfo(f"{self._root}/{name}")
        entry.size = len(data)
        self._tar.addfile(entry, io.BytesIO(data))
        self._sums[name] = hashlib.sha256(data).hexdigest()


def about(path: Path) -> dict[str, Any]:
    """What the file says of itself. Raises BadBackup."""
    with _opened(path) as tar:
        first = tar.next()
        if first is None or not first.isreg() or PurePosixPath(first.name).name != ABOUT:
            raise BadBackup(f"{path}: is no backup of headrace: expected {ABOUT} as its first entry")
        try:
            found = dict(json.loads(tar.extractfile(first).read()))
        except (ValueError, TypeError):
            found = {}
    if found.get("form") != FORM:
        raise BadBackup(f"{path}: is of form {found.get('form')}, this headrace reads {FORM}: restore it with its own")
    name = found.get("run")
    if not isinstance(name, str) or not re.fullmatch(NAME, name):  # folders are made, and deleted, by it
        raise BadBackup(f"{path}: {name!r} is no name of a run; this file was not made by headrace")
    return found


def unpack(path: Path, folder: Path) -> None:
    """All of it, the keys too, into `folder`, once every sum was compared. Raises BadBackup."""
    found: dict[str, str] = {}
    sums = None
    with _opened(path) as tar:
        for entry in tar:
            name = _safe(path, entry.name)
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if entry.islnk():
                linked = _safe(path, entry.linkname)
                if linked not in found:
                    raise BadBackup(f"{path}: {name} is a link to {linked}, which is not in it")
                os.link(folder / linked, target)
                found[name] = found[linked]
            elif entry.isreg() and not target.exists():
                found[name] = _write(tar.extractfile(entry), target)
                target.chmod(entry.mode & 0o777)
            else:
                raise BadBackup(f"{path}: {name} is no file, or there twice")
            if name == SUMS:
                sums = target.read_text()
    expected = dict(line.split("  ", 1)[::-1] for line in (sums or "").splitlines())
    found.pop(SUMS, None)
    if sums is None or expected != found:
        names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        what = f"{names[0]} is not what was written" if sums is not None else f"its end is missing ({SUMS})"
        raise BadBackup(f"{path}: {what}; take another copy of it")


def read_keys(folder: Path) -> Iterator[list[Any]]:
    """The commands that `unpack` left in `folder`, in order."""
    for part in sorted((folder / KEYS).glob("*.msgpack")):
        yield from msgpack.Unpacker(io.BytesIO(part.read_bytes()), max_buffer_size=0)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:") as tar:
            yield tar
    except (tarfile.TarError, EOFError) as error:
        raise BadBackup(f"{path}: is no whole backup ({error}); take another copy of it") from None


def _safe(path: Path, name: str) -> str:
    """The name within the top folder, which must not lead out of it."""
    parts = PurePosixPath(name).parts[1:]
    if name.startswith("/") or ".." in parts or not parts:
        raise BadBackup(f"{path}: {name!r} is no name of a backup's; this file was not made by headrace")
    return "/".join(parts)


def _write(source: BinaryIO, target: Path) -> str:
    hashed = _Hashed(source)
    with target.open("wb") as file:
        shutil.copyfileobj(hashed, file, COPIED_BYTES)
        file.flush()
        os.fsync(file.fileno())
    return hashed.hexdigest()


class _Hashed:
    """A file that is read once, from front to back."""

    def __init__(self, file: BinaryIO):
        self._file, self._sum = file, hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._sum.update(data)
        return data

    def hexdigest(self) -> str:
        return self._sum.hexdigest()
