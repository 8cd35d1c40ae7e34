"""Whether an update's memory grows with the vocabulary: the same tokens, with a vocabulary of 8,192 and of 151,936.

peak of the resident set (VmHWM)  -  16 bytes a parameter: itself, its gradient, AdamW's two       a process for each
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from pipeline.config import Trainer
from tests.bench.drawn import trajectory
from tests.bench.result import Result
from tests.bench.update import make_model, settings
from trainer.ranks import joined
from trainer.resume import make_updater
from trainer.throughput import GIB, peak_memory_gib

VOCABULARIES = (8_192, 151_936)
LENGTHS = [1024] * 8  # one micro-batch
LAYERS = 7
KEPT = 16  # bytes a parameter
TOLERANCE = 0.15


def measure() -> list[Result]:
    small, large = (_measured(vocabulary) for vocabulary in VOCABULARIES)
    grown = large / small - 1
    return [
        Result(
            f"memory of an update without parameters, gradients and optimizer state, vocabulary {VOCABULARIES[1]:,}, "
            f"of the same with {VOCABULARIES[0]:,}",
            f"{grown:+.0%} ({large:.2f} GiB, {small:.2f} GiB)",
            f"within {TOLERANCE:.0%}",
            abs(grown) <= TOLERANCE,
            (small, large),
        )
    ]


def _measured(vocabulary: int) -> float:
    """GiB."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        make_model(Path(folder), vocabulary, LAYERS)
        command = [sys.executable, "-m", "tests.bench.vocabulary", folder, str(vocabulary)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"vocabulary {vocabulary}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def rest(folder: Path, vocabulary: int) -> float:
    """GiB of this process's peak in an update that are not for what every update keeps."""
    trajectories = [trajectory(number, length, vocabulary) for number, length in enumerate(LENGTHS)]
    with joined(Trainer()) as ranks:
        updater = make_updater(folder, settings(folder), ranks)
        for batch in (trajectories[:1], trajectories):  # the optimizer has no state before its first step
            updater.update(updater.prepare(batch), version=0)
        kept = KEPT * sum(parameter.numel() for parameter in updater.model.parameters())
    return peak_memory_gib(torch.device("cpu")) - kept / GIB


if __name__ == "__main__":
    print(rest(Path(sys.argv[1]), int(sys.argv[2])))
