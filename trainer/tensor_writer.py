"""Tensors that come piece by piece become files: each has a thread that hashes, writes and forces it to the disk.

    pieces ─▶ file 1: its thread ─ XXH3 of the tensor, sha256 of the file, write … fsync
    pieces ─▶ file 2: its thread ─ …                    so one file reaches the disk while the next one is gathered

What was taken and is not written yet is never more than `limit` bytes: whoever brings the next piece waits.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from hashlib import sha256
from os import fsync
from pathlib import Path

import torch

from pipeline import tensor_file
from pipeline.tensor_file import Entry
from pipeline.weights import TensorFile

CHUNK = 1 << 20  # bytes: still in the cache when they are hashed; writes of 16 MiB take the kernel 2 to 4 times as long


class Writer:
    """Writes files one after another. `finish` raises what a thread could not do; nothing does before, because the
    other ranks count on this one to take part in every piece."""

    def __init__(self, limit: int):
        self._limit, self._held = limit, 0
        self._pending: deque[tuple[int, Future]] = deque()
        self._finished: dict[str, Future[TensorFile]] = {}
        self._open: _File | None = None

    def begin(self, path: Path, entries: Sequence[Entry]) -> None:
        """What is put from now on belongs to the file `path`, which has the tensors of `entries` in this order."""
        self.end()
        self._open = _File(path, entries)

    def put(self, entry: Entry, piece: torch.Tensor) -> None:
        """The next bytes of the file: some or all rows of a tensor."""
        size = piece.nbytes
        while self._pending and self._held + size > self._limit:
            held, done = self._pending.popleft()
            wait([done])
            self._held -= held
        self._pending.append((size, self._open.put(entry, piece)))
        self._held += size

    def end(self) -> None:
        """Nothing more comes for the open file: its thread goes on to force it to the disk."""
        if self._open is not None:
            self._finished[self._open.path.name] = self._open.close()
            self._open = None

    def finish(self) -> dict[str, TensorFile]:
        """Every file by its name, once all are on the disk."""
        self.end()
        self._pending.clear()
        wait(self._finished.values())
        return {name: done.result() for name, done in self._finished.items()}


class _File:
    """Each step waits for the one before, and fails with it."""

    def __init__(self, path: Path, entries: Sequence[Entry]):
        self.path, self._file = path, None
        self._thread = ThreadPoolExecutor(1, "write")
        self._sha256 = sha256()
        self._marks = {entry.name: entry.fingerprint() for entry in entries}
        self._last = self._thread.submit(self._begin, tensor_file.header(entries))

    def put(self, entry: Entry, piece: torch.Tensor) -> Future[None]:
        self._last = self._thread.submit(self._add, self._last, entry, piece)
        return self._last

    def close(self) -> Future[TensorFile]:
        done = self._thread.submit(self._end, self._last)
        self._thread.shutdown(wait=False)
        return done

    def _begin(self, header: bytes) -> None:
        self._file = self.path.open("wb", buffering=0)
        self._write(memoryview(header), [self._sha256])

    def _add(self, before: Future[None], entry: Entry, piece: torch.Tensor) -> None:
        before.result()
        data = memoryview(piece.cpu().reshape(-1).view(torch.uint8).numpy())
        self._write(data, [self._marks[entry.name], self._sha256])

    def _write(self, data: memoryview, hashes: Sequence) -> None:
        while data:
            count = self._file.write(data[:CHUNK])
            for digest in hashes:
                digest.update(data[:count])
            data = data[count:]

    def _end(self, before: Future[None]) -> TensorFile:
        try:
            before.result()
            fsync(self._file.fileno())
        finally:
            if self._file is not None:
                self._file.close()
        return TensorFile(self._sha256.hexdigest(), {name: mark.hexdigest() for name, mark in self._marks.items()})
