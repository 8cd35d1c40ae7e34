"""Trajectories in a file, such as the cold start's traces.bin: written once and whole, read once and whole.

│ length, 4 bytes │ encoded trajectory │ length, 4 bytes │ encoded trajectory │ …        lengths are little-endian
"""

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.trajectory import Trajectory

LENGTH = struct.Struct("<I")


def write(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """The file, at once or not at all. Raises BadTrajectory."""
    draft = path.with_name(path.name + ".new")
    with draft.open("wb") as file:
        for trajectory in trajectories:
            message = trajectory.encode()
            file.write(LENGTH.pack(len(message)) + message)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


def read(path: Path) -> list[Trajectory]:
    """The trajectories, in their order. Raises ConfigError if it is missing or cut, BadTrajectory if forged."""
    try:
        raw = memoryview(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `python -m workers.traces RUN.toml` writes it") from None
    trajectories, at = [], 0
    while at < len(raw):
        start = at + LENGTH.size
        end = start + LENGTH.unpack_from(raw, at)[0] if start <= len(raw) else start
        if end > len(raw):
            raise ConfigError(f"{path}: ends within trajectory {len(trajectories)}; delete it and write it again")
        trajectories.append(Trajectory.decode(raw[start:end]))
        at = end
    return trajectories
