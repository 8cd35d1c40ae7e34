"""What `headrace doctor` finds about the disk that a run is written to.

checkpoints/   trainer.checkpoints_kept, and the one that is being written     12 bytes a parameter; 16 with a reference
weights/       the first, the present and the former version, those of two     4 or 2 bytes a parameter: model.dtype
               checkpoints, and the one that is being written

Older ones are deleted as soon as nobody can ask for them: checkpoint_folder.retain, weights.retain.
"""

import contextlib
import shutil
from math import prod
from pathlib import Path

from pipeline import tensor_file
from pipeline.config import Config
from pipeline.doctor_machine import Finding

LEAST_GB = 5
VERSIONS = 6
TRAINED_BYTES = 12  # weight and two moments, float32
REFERENCE_BYTES = 4


def disk(config: Config | None) -> Finding:
    """Counting what the run has there already; without a model folder, whatever a small run wants."""
    folder = (config.run.folder if config else Path()).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free / 1e9
    found, fix = f"{free:.0f} GB free in {folder}", "free some, set run.folder, or lower trainer.checkpoints_kept"
    wanted, own = (wanted_bytes(config) / 1e9, _held_bytes(config) / 1e9) if config else (0, 0)
    if wanted > LEAST_GB:
        found += f"; checkpoints and weights will take {wanted:.0f} GB, and have {own:.0f} GB"
    wanted = max(LEAST_GB, wanted)
    return free + own >= wanted, found, f"a run like this wants {wanted:.0f} GB; {fix}"


def wanted_bytes(config: Config) -> int:
    """Of all checkpoints and weights that are there at a time; 0 without a model folder."""
    a_parameter = TRAINED_BYTES + (REFERENCE_BYTES if config.loss.kl else 0)
    a_version = {"float32": 4, "bfloat16": 2}[config.model.dtype]
    total = a_parameter * (config.trainer.checkpoints_kept + 1) + a_version * VERSIONS
    return _parameters(config.model_path) * total


def _parameters(folder: Path) -> int:
    found = 0
    for path in folder.glob("*.safetensors"):
        with contextlib.suppress(ValueError, KeyError, TypeError), path.open("rb") as file:  # `validate` says so
            found += sum(prod(entry.shape) for entry in tensor_file.entries(file))
    return found


def _held_bytes(config: Config) -> int:
    files = (path for part in ("checkpoints", "weights") for path in (config.folder / part).rglob("*"))
    found = 0
    for path in files:
        with contextlib.suppress(FileNotFoundError):  # it is being deleted
            found += path.stat().st_size if path.is_file() else 0
    return found
