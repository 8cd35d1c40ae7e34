"""A safetensors file as bytes, for who writes or checks it piece by piece: the library wants all of it in memory.

    8 bytes: length of the header │ header, JSON: name -> dtype, shape, place │ tensor │ tensor │ …

A tensor's fingerprint is the XXH3 of its dtype, shape and bytes: ten times as fast as sha256, it tells torn or changed
weights from whole ones, and changed tensors from those that stayed. It is no proof against forgery.
"""

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import xxhash

ALIGNED = 8  # bytes: where the tensors begin
LONGEST_HEADER = 100 << 20  # the library's own limit
READ = 4 << 20  # bytes at a time
SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


class Entry(NamedTuple):
    """One tensor; dtype in the format's words, such as "BF16"."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * SIZES[self.dtype]

    def fingerprint(self) -> "xxhash.xxh3_128":
        """To be updated with the tensor's bytes."""
        return xxhash.xxh3_128(json.dumps([self.dtype, self.shape]).encode())


def header(entries: Sequence[Entry]) -> bytes:
    """What a file begins with that holds the tensors of `entries`, in this order and without gaps."""
    described, place = {"__metadata__": {"format": "pt"}}, 0
    for entry in entries:
        end = place + entry.bytes
        described[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(8, "little") + text


def entries(file: BinaryIO) -> list[Entry]:
    """Read the header; the file then stands at its first tensor. Raises ValueError if it is none that we write."""
    size = int.from_bytes(file.read(8), "little")
    if size > LONGEST_HEADER:
        raise ValueError(f"a header of {size} bytes")
    described, place, found = json.loads(file.read(size)), 0, []
    if not isinstance(described, dict):
        raise ValueError("a header that is no object")
    described.pop("__metadata__", None)
    for name, tensor in described.items():
        entry = Entry(name, tensor["dtype"], tuple(tensor["shape"]))
        if tensor["data_offsets"] != [place, place := place + entry.bytes]:
            raise ValueError(f"{name} lies at {tensor['data_offsets']}, expected to end at {place}")
        found.append(entry)
    return found


def fingerprints(path: Path) -> dict[str, str]:
    """Of every tensor in the file, as it lies there. Raises ValueError if the file is not whole."""
    found, buffer = {}, memoryview(bytearray(READ))
    with path.open("rb", buffering=0) as file:
        for entry in entries(file):
            digest, left = entry.fingerprint(), entry.bytes
            while left:
                count = file.readinto(buffer[: min(left, READ)])
                if not count:
                    raise ValueError(f"it ends within {entry.name}")
                digest.update(buffer[:count])
                left -= count
            found[entry.name] = digest.hexdigest()
        if file.read(1):
            raise ValueError("something follows its last tensor")
    return found
