"""One engine of a run, kept at the version that it should serve; nothing is routed to one that has not proved it.

    step(state), as often as anybody likes:
        ready, serves what is wanted ─▶ every 2 s: does it generate, under that label?
        ready, serves other weights ──▶ may stop? ─▶ draining │ loading ─▶ load ─▶ label and probe ─▶ ready
        anything else ────────────────▶ loading ─▶ …
        fails ──▶ failed, and why; again after 0.5, 1, 2 … 10 s

Either each stops as soon as something newer is out (`at_once`), or one at a time: the others serve, and admit at, their
old version while it loads, and generation never stops. In turns costs what waiting for the turn costs: older versions,
and the more engines there are, the older.
One that was started again by its supervisor serves its base weights; its label says so within 2 s, and every reply
tells the workers.
"""

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.coordinator import Coordinator
from pipeline.engines import Engine, EngineFailed
from pipeline.ledger_types import Weights
from pipeline.transfer import TransferFailed
from pipeline.weights import BadWeights, Label, verify_files

CHECK_S = 2.0
LATE = 3  # checks in a row without an answer in time: slow is not dead, a prompt may be long
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
READY, DRAINING, LOADING, FAILED = "ready", "draining", "loading", "failed"

log = logging.getLogger(__name__)


@dataclass
class Publication:
    """How weights reach the engines of a run.

    load_timeout_s  with what `policy` has a load wait for
    transfer        (url, path, label): brings weights to a serving engine without the disk, or raises TransferFailed
    """

    folder: Path
    load_timeout_s: float
    tolerance: float | None = None
    policy: str = "drain"
    at_once: bool = False
    transfer: Callable[[str, str, str], None] | None = None
    _stopping: threading.Lock = field(default_factory=threading.Lock)
    _verifying: threading.Lock = field(default_factory=threading.Lock)
    _verified: Label | None = None

    def may_stop(self, until: contextlib.ExitStack) -> bool:
        """Whether an engine may stop serving now; then no other one may before `until` is closed."""
        if self.at_once:
            return True
        taken = self._stopping.acquire(blocking=False)
        if taken:
            until.callback(self._stopping.release)
        return taken

    def verify(self, weights: Weights, label: Label) -> Path:
        """The folder of `weights`. Its files are compared with their manifest: once, hashing takes a second a GB."""
        folder = self.folder / weights.path
        with self._verifying:
            if label != self._verified:
                verify_files(folder)
                self._verified = label
        return folder


class Keeper:
    """wanted: the weights that it should serve. serves: the label that it has proved. Times: of the monotonic clock."""

    def __init__(self, name: str, url: str, coordinator: Coordinator, publication: Publication):
        self.name, self.engine = name, Engine(url)
        self._coordinator, self._publication = coordinator, publication
        self.wanted: Weights | None = None
        self.serves: Label | None = None
        self.loading: int | None = None
        self.problem = ""
        self.failures, self.retry_at = 0, 0.0
        self._checked, self._late, self._token = 0.0, 0, 0

    def step(self, state: str | None) -> None:
        """state: the engine's in the ledger."""
        if time.monotonic() < self.retry_at:
            return
        wanted = self.wanted.label(self._coordinator.run)
        serving = self.serves is not None and state == READY
        with contextlib.ExitStack() as stopped:
            try:
                if serving and (self.serves == wanted or not self._publication.may_stop(stopped)):
                    if self._answers():
                        return
                    serving = False
                self._bring(serving, state)
            except (EngineFailed, BadWeights) as error:
                self._fail(error)
            finally:
                self.loading = None

    def introduce(self) -> None:
        self._mark("starting", "not verified yet")

    def _answers(self) -> bool:
        """False: it answers, but says that it serves other weights. Raises EngineFailed for one that is dead."""
        if time.monotonic() - self._checked < CHECK_S:
            return True
        try:
            said = self.engine.generates(self._token)
        except EngineFailed as error:
            self._late += 1
            if error.code != "SLOW" or self._late == LATE:
                raise
        else:
            self._late = 0
            if said != str(self.serves):
                return False
        self._checked = time.monotonic()
        return True

    def _bring(self, serving: bool, state: str | None) -> None:
        begun, publication, run = time.monotonic(), self._publication, self._coordinator.run
        draining = serving and publication.policy == "drain"
        weights, label, folder = self._verified()  # before the engine stops serving
        if state != FAILED:  # why it failed is to be read until it no longer does
            self._mark(DRAINING if draining else LOADING, f"version {weights.version}")
        if draining:
            self.engine.drain(publication.load_timeout_s)
            weights, label, folder = self._verified()  # what was published while the last long reply ended
        # Engine.bring's promise: from here on `serves` is what was proved, or nothing
        transfer = functools.partial(self._transfer, weights, label) if serving and publication.transfer else None
        manifest = self.engine.bring(
            folder, run, publication.load_timeout_s, publication.tolerance, publication.policy, transfer
        )
        if manifest.label(run) != label:
            raise BadWeights(
                f"{folder} holds {manifest.label(run)}, but {label} was published: the folder was replaced"
            )
        self._coordinator.register_engine(self.name, weights.version, self.engine.url)
        self._checked = time.monotonic()
        ids = {"engine": self.name, "version": weights.version}
        log.info("serves version %d (%.2f s)", weights.version, self._checked - begun, extra=ids)
        self.serves, self._token = label, manifest.probe_tokens[0]
        self.failures, self.retry_at, self.problem, self._late = 0, 0.0, "", 0

    def _verified(self) -> tuple[Weights, Label, Path]:
        """What is wanted now, its label and its folder, which is not deleted until it is loaded."""
        weights = self.wanted
        self.loading = weights.version
        label = weights.label(self._coordinator.run)
        return weights, label, self._publication.verify(weights, label)

    def _transfer(self, weights: Weights, label: Label) -> bool:
        try:
            self._publication.transfer(self.engine.url, weights.path, str(label))
            return True
        except TransferFailed as error:
            ids = {"engine": self.name, "version": label.version}
            log.warning("loads version %d from disk: the transfer failed: %s", label.version, error, extra=ids)
            self._mark(LOADING, f"version {label.version}, from disk: {error}")
            return False

    def _fail(self, error: Exception) -> None:
        pause = min(FIRST_PAUSE_S * 2**self.failures, LONGEST_PAUSE_S)
        self.serves, self.failures, self.problem, self._late = None, self.failures + 1, str(error), 0
        self.retry_at = time.monotonic() + pause
        log.warning("failed, next attempt in %g s: %s", pause, error, extra={"engine": self.name})
        self._mark(FAILED, str(error))

    def _mark(self, state: str, reason: str) -> None:
        self._coordinator.mark_engine(self.name, state, reason, self.engine.url)
