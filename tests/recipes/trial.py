"""One recipe for a few updates under `headrace up`, everything real; then every number of it, recomputed.

init ─▶ up, trainer.archive ─▶ metrics.jsonl, trained/, weights/ (kept by hard links: the run deletes old ones)
                            └▶ Replay: losses, gradients, advantages, steps     └▶ values of every reservation
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from pipeline import jsonl, trajectory_file
from pipeline.config import Config
from pipeline.config_file import load
from pipeline.recipe_files import write
from pipeline.run_folder import open_folder
from pipeline.weights import MANIFEST
from tests.recipes import values
from tests.recipes.replay import Replay

SMALL = [
    *("trainer.archive=true", "trainer.checkpoint_every=2", "data.size=64", "eval.data.size=8", "eval.n=1"),
    *("eval.every=1000", "cold_start.problems=512"),
]
UP_S = 900


class Trial:
    """One run of `recipe` in `folder`."""

    def __init__(self, recipe: str, folder: Path, updates: int, overrides: list[str]):
        self.recipe, self.folder, self.updates = recipe, folder, updates
        self.overrides = [*SMALL, f"run.total_steps={updates}", *overrides]
        self.run = folder / "runs" / "trial"
        self.kept = folder / "kept"
        self.seconds = 0.0

    def begin_as(self, other: "Trial") -> None:
        """From the model and version 0 of a trial that has run: a cold start takes longer than the updates."""
        self._init()
        with contextlib.chdir(self.folder):
            open_folder(load(Path("trial.toml"), self.overrides))
        shutil.copytree(other.run / "model", self.run / "model")
        shutil.copytree(other.kept / "0", self.run / "weights" / "0")

    def up(self) -> str | None:
        """Run it to its end; what it said if that failed."""
        self._init()
        begun = time.monotonic()
        log = self.folder / "up.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                self._argv("up", "trial.toml", *self.overrides),
                cwd=self.folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            try:
                while process.poll() is None and time.monotonic() - begun < UP_S:
                    self._keep_weights()
                    time.sleep(0.05)
            finally:
                if process.poll() is None:
                    process.terminate()
                process.wait(60)
        self._keep_weights()
        self.seconds = time.monotonic() - begun
        return None if process.returncode == 0 else "\n".join(log.read_text().splitlines()[-15:])

    def differences(self) -> list[str]:
        """What an independent computation gets otherwise; empty if all agrees."""
        config, lines = self.config, jsonl.read(self.run / "metrics.jsonl")
        if [line["version"] for line in lines] != list(range(self.updates)):
            return [f"{len(lines)} updates in metrics.jsonl, not {self.updates}"]
        replay = Replay(config, {int(path.name): str(path) for path in self.kept.iterdir()})
        wrong, batches = [], []
        for line in lines:
            batches.append(trajectory_file.read(self.run / "trained" / f"{line['version']}.bin"))
            wrong += replay.update(line["version"], batches[-1], line)
        if config.advantage.sampler == "uncertainty":
            compared, differing = (
                values.in_receipt_order(self.run, config, replay.credits)
                if config.advantage.evidence == "receipt"
                else values.event_time(self.run, config, batches)
            )
            wrong += differing if compared else ["no value was compared"]
        return wrong

    @property
    def config(self) -> Config:
        return load(self.run / "run.toml")

    @property
    def rewards(self) -> list[float]:
        return [line["reward"] for line in jsonl.read(self.run / "metrics.jsonl")]

    def audit(self) -> str | None:
        done = subprocess.run(self._argv("audit", "trial", "--json"), cwd=self.folder, capture_output=True, text=True)
        return None if done.returncode == 0 else done.stdout[-500:] + done.stderr[-500:]

    def _init(self) -> None:
        if not self.kept.exists():
            self.kept.mkdir(parents=True)
            write("trial", self.recipe, self.folder)

    def _keep_weights(self) -> None:
        for path in (self.run / "weights").glob("[0-9]*"):
            kept = self.kept / path.name.partition("-")[0]
            if (path / MANIFEST).is_file() and not kept.exists():
                try:
                    shutil.copytree(path, kept, copy_function=os.link)
                except (OSError, shutil.Error):  # deleted meanwhile: older than what is wanted
                    shutil.rmtree(kept, ignore_errors=True)

    def _argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pipeline.cli", *arguments]
