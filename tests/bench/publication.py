"""From the end of an update until every engine serves it, against the least that the disk takes for the same bytes.

    publication   write_weights ─▶ EngineFleet: check the files, load ─▶ SGLang ─▶ label and probe     1 GB, float32
    copies        the same files copied twice, each copy forced to the disk

What writes, what brings the weights to the engine, and SGLang are the real ones, on this machine's CPU; the model is
random, of Qwen3's kind. Both are measured in alternation. Needs HEADRACE_SGLANG_PYTHON, and 5 GiB of memory.
"""

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from pipeline.config_sections import TinyModel
from pipeline.coordinator import Coordinator
from pipeline.engine_fleet import EngineFleet
from pipeline.engine_keeper import Publication
from pipeline.ledger_types import Weights
from tests.bench.result import Result, ratio
from tests.bench.server import Server
from tests.fixtures_sglang import start_server, stop_server
from tests.waiting import wait_for
from trainer import tiny
from trainer.publish import write_weights

ROUNDS = 3
TARGET = 1.5
LOAD_S = 300.0
PROBE = list(range(32))
SIZES = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 17, "vocab_size": 384}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 64, "tie_word_embeddings": True}


def measure(server: Server) -> list[Result]:
    if not Path(python := os.environ.get("HEADRACE_SGLANG_PYTHON", ".venv-sglang/bin/python")).exists():
        raise RuntimeError(f"no SGLang at {python}: `make setup` installs it, or set HEADRACE_SGLANG_PYTHON")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        run = _Run(Path(folder), server)
        sglang = start_server(run.folder / "weights/0", run.folder / "sglang.log")
        try:
            return _compare(run, EngineFleet(run.ledger, [sglang.url], Publication(run.folder, LOAD_S)))
        finally:
            stop_server(sglang)


class _Run:
    """Its model, its weights, and no training."""

    def __init__(self, folder: Path, server: Server):
        self.folder = folder
        tiny.make(folder / "base", TinyModel(vocabulary=SIZES["vocab_size"]), ["1 + 1 = ?"], seed=1, context=1024)
        torch.manual_seed(1)
        shape = Qwen3Config(**SIZES, **HEADS, max_position_embeddings=1024)
        self.model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32).eval()
        self.ledger = Coordinator.create(server.client, f"publication-{os.getpid()}", {"batch_size": 2})
        self.write(0)

    def write(self, version: int) -> tuple[Weights, int]:
        """And how many bytes it has."""
        path = f"weights/{version}"
        written = write_weights(self.model, self.folder / path, version, self.folder / "base", "float32", PROBE)
        return Weights(version, path, written.manifest.digest, version, 0), written.bytes

    @torch.no_grad()
    def update(self) -> None:
        for parameter in self.model.parameters():
            parameter.mul_(1.001)

    def copy_twice(self, version: int) -> float:
        """Seconds."""
        began = time.monotonic()
        for copy in ("one", "two"):
            for source in (self.folder / f"weights/{version}").glob("*.safetensors"):
                target = self.folder / f"{copy}-{source.name}"
                shutil.copyfile(source, target)
                with target.open("rb") as file:
                    os.fsync(file.fileno())
        seconds = time.monotonic() - began
        for path in self.folder.glob("*-*.safetensors"):
            path.unlink()
        return seconds


def _compare(run: _Run, fleet: EngineFleet) -> list[Result]:
    wholes, writing, serving, copies = [], [], [], []
    for version in range(1, ROUNDS + 2):
        run.update()
        copy_s, began = run.copy_twice(version - 1), time.monotonic()
        weights, size = run.write(version)
        written = time.monotonic()
        wait_for(lambda weights=weights: fleet.follow(weights), LOAD_S)
        served = time.monotonic()
        if version > 1:  # the first one warms up
            for times, seconds in zip(
                (wholes, writing, serving, copies),
                (served - began, written - began, served - written, copy_s),
                strict=True,
            ):
                times.append(seconds)
        shutil.rmtree(run.folder / f"weights/{version - 1}")
    name, median = f"publication of {size / 1e9:.2f} GB until SGLang serves it", statistics.median
    parts = "; ".join(f"{median(seconds):.1f} s" for seconds in (writing, serving, copies))
    return [
        ratio(f"{name} / two copies with fsync", [a / b for a, b in zip(wholes, copies, strict=True)], below=TARGET),
        Result("of that writing; check, load and probe; the two copies", parts, rounds=tuple(wholes)),
    ]
