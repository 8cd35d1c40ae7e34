"""The ledger's client: Reserve, Occupy, Consume and what belongs to them, from any process and any thread.

    prompts ── reserve ──▶ RESERVED ── occupy ──▶ OCCUPIED in a buffer ── consume ──▶ CONSUMED ─ publish ─▶ version + P
       ▲                      │
       └── release, reap ─────┘             every transition rings the bell: pipeline/events.py

Every call is one Lua transition (pipeline/lua/): atomic, refused before its first write, and safe to repeat. The client
keeps the newest (joined, version, head) it saw, to notice a Redis that lost writes, the ids of streams, and of each
worker the random number that its next reservation brings.
The trainer's calls are in trainer_calls.py.
"""

import hashlib
import json
import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import redis
from redis.exceptions import OutOfMemoryError, ResponseError

from pipeline import errors, events, keys, memory
from pipeline.ledger_settings import FILTER_METRICS, RULES, Settings
from pipeline.ledger_types import (
    Batch,
    Commands,
    Credited,
    Filtered,
    Placed,
    Published,
    Ref,
    Refused,
    Replayed,
    Reservation,
    Surplus,
)
from pipeline.trainer_calls import TrainerCalls
from pipeline.trajectory import Trajectory
from pipeline.trajectory_check import check_group
from pipeline.transitions import text

__all__ = [
    "Batch",
    "Coordinator",
    "Credited",
    "Filtered",
    "Placed",
    "Published",
    "Ref",
    "Refused",
    "Replayed",
    "Reservation",
    "Surplus",
]

RELEASE_REASONS = ("failed", "retry", "cancelled", "lost")
PROMPTS_A_CALL = 500
WHY = 300  # characters of a reason that are kept


class Coordinator(TrainerCalls):
    """One run's ledger. seed: of the draws of prompts; clock: a callable (or number) in ms, for tests only."""

    def __init__(
        self, client: redis.Redis, run: str, seed: int | str | None = None, clock: Callable[[], int] | int | None = None
    ):
        super().__init__(client, run, clock)
        self._random = random.Random(seed)
        self._drawn: dict[str, str] = {}  # worker -> what its next reservation brings
        self._reserved: dict[str, tuple[str, str, int]] = {}  # entry of this client -> worker, prompt, version
        self._settings: dict[str, str] = {}

    @classmethod
    def create(cls, client: redis.Redis, run: str, settings: Any, **options: Any) -> "Coordinator":
        """Make the run, or find it made with the same settings. settings: mapping or model, as ledger_settings; a
        `digest` in it stands for the whole config's.

        Raises OtherSchema, OtherSettings, or ConfigError for impossible ones.
        """
        values = dict(settings if isinstance(settings, Mapping) else settings.model_dump())
        digest = values.pop("digest", None)
        stored = Settings.read(values).stored()
        _below_maxmemory(client, stored["byte_budget"])
        digest = digest or hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()[:16]
        coordinator = cls(client, run, **options)
        coordinator._ledger.scripts.load()  # those too that only workers and the trainer use, who may not be allowed to
        rules = "".join(f"{stored[name] or 0} " for name in RULES.split())
        pairs = [item for pair in stored.items() for item in pair]
        code = coordinator._ledger.run("create", keys.SCHEMA, digest, rules, *pairs)[0]
        if code != "CREATED":
            found = coordinator.fields()  # which refuses another schema
        if code == "OTHER_SETTINGS":
            differing = [f"{k}: {found.get(k)} → {v}" for k, v in stored.items() if found.get(k) != str(v)]
            raise errors.OtherSettings(
                f"run {run!r} exists in this Redis with other settings (digest {found['digest']}, asked for {digest}; "
                f"{', '.join(differing) or 'the differences are outside of the ledger'}): "
                "choose another name"
            )
        return coordinator

    # -- prompts ------------------------------------------------------------------------------------------------------

    def add_prompts(self, prompts: Iterable[Mapping[str, Any]]) -> int:
        """Add {"id", "payload"?: bytes, "alpha"?, "beta"?, "event"?, "visits"?, "epoch"?}; known ids stay as they are.
        Returns how many were new. The last three are of prompts that a checkpoint has: LedgerView.evidence."""
        prompts = list(prompts)
        flat = []
        for prompt in prompts:
            alpha, beta = float(prompt.get("alpha", 4.0)), float(prompt.get("beta", 4.0))
            if not (0 < alpha < float("inf") and 0 < beta < float("inf")):
                raise errors.ConfigError(f"prompt {prompt['id']!r}: expected alpha, beta > 0, found {alpha}, {beta}")
            place = [int(prompt.get("event", 0)), int(prompt.get("visits", 0)), prompt.get("epoch", "")]
            flat.append(
                [prompt["id"], prompt.get("payload", b""), repr(alpha), repr(beta), *place, self._exponential()]
            )
        added = 0
        for start in range(0, len(flat), PROMPTS_A_CALL):
            args = [item for row in flat[start : start + PROMPTS_A_CALL] for item in row]
            added += self._ledger.run("add_prompts", *args)[1][0]
        return added

    # -- workers ------------------------------------------------------------------------------------------------------

    def reserve(self, worker: str, engine: str, entry: str | None = None) -> Reservation | Refused:
        """Admit one entry for this worker incarnation on this engine. The same entry id again gets the same answer."""
        entry = entry or uuid.uuid4().hex
        try:
            # a refusal uses nothing up: what follows does not depend on how often a worker was refused
            if worker not in self._drawn:
                self._drawn[worker] = self._exponential()
            args = (entry, worker, engine, self._drawn[worker])
            code, answer = self._ledger.run("reserve", *args, extra=(keys.entry(self.run, entry),))
        except OutOfMemoryError:
            return Refused("MEMORY")
        if code != "OK":
            return Refused(code)
        del self._drawn[worker]
        prompt, payload, value = text(answer[0]), answer[1], float(answer[6])
        visit, version, deadline, event, attempt = (int(answer[i]) for i in (2, 3, 4, 5, 7))
        self._reserved[entry] = (worker, prompt, version)
        return Reservation(entry, prompt, payload, version, deadline, event, value, attempt, visit)

    def occupy(self, entry: str, trajectories: list[Trajectory]) -> Placed | Surplus | Filtered | Refused:
        """Hand in the finished trajectories of an entry. Raises BadTrajectory; the entry stays RESERVED then."""
        reserved = self._reserved.get(entry) or self._look_up(entry)
        if not reserved:
            return Refused("GONE")
        worker, *claims = reserved
        try:
            payloads = [t.encode(int(self._setting("max_trajectory_bytes"))) for t in trajectories]
        except errors.BadTrajectory as error:
            if error.code == "OLD":
                return Refused("OLD")
            raise
        check_group(trajectories, entry, *claims, int(self._setting("group_size")))
        oldest = min((s.version for t in trajectories for s in t.segments), default=trajectories[0].version)
        outcomes = [repr(float(t.outcome)) for t in trajectories]
        if (metric := self._setting("filter_metric")) and len(trajectories) > 1:
            outcomes += [repr(float(FILTER_METRICS[metric](t))) for t in trajectories]
        code, answer = self._ledger.occupy(worker, entry, payloads, [*claims, oldest], outcomes)
        if code == "BAD":
            what, expected = text(answer[0]), text(answer[1]) if isinstance(answer[1], bytes) else answer[1]
            raise errors.BadTrajectory(
                what.upper(), f"entry {entry!r}: expected {what} {expected}, as Reserve answered"
            )
        if code != "OLD":
            self._reserved.pop(entry, None)
        if code == "PLACED":
            return Placed(answer[0])
        return {"SURPLUS": Surplus(), "FILTERED": Filtered()}.get(code) or Refused(code)

    def release(self, entry: str, reason: str, why: str = "") -> bool:
        """Give an entry back: "failed" | "retry" | "cancelled" | "lost". False: it was in flight no longer. why: what
        happened, which a run that stops after many failures tells of the last one."""
        if reason not in RELEASE_REASONS:
            raise ValueError(f"expected one of {', '.join(RELEASE_REASONS)}, found {reason!r}")
        _, answer = self._ledger.run(
            "release", entry, reason, " ".join(why.split())[:WHY], extra=(keys.entry(self.run, entry),)
        )
        self._reserved.pop(entry, None)
        return bool(answer[0])

    def renew(self, worker: str, entries: Iterable[str]) -> Commands:
        """Prolong the worker's lease and compare its entries with the ledger's."""
        _, (drain, cancelled, truncate) = self._ledger.run("renew", worker, *entries)
        return Commands(tuple(map(text, cancelled)), tuple(map(text, truncate)), bool(drain))

    # -- the coordinator process --------------------------------------------------------------------------------------

    def register_engine(self, engine: str, version: int, url: str | None = None) -> None:
        """The engine serves `version`, verified: route to it."""
        self._ledger.run("engine", engine, "ready", version, url or "", "")

    def mark_engine(self, engine: str, state: str, reason: str = "", url: str | None = None) -> None:
        """Any state but "ready" ("starting", "draining", "loading", "failed") keeps new entries from the engine."""
        self._ledger.run("engine", engine, state, "", url or "", reason)

    def remove_engine(self, engine: str) -> None:
        self._ledger.run("engine", engine, "removed", "", "", "")

    def reap(self) -> list[str]:
        """Release what dead workers held, what took too long, and what the proactive filter aborts. Returns those."""
        try:
            run_id = self.client.info("server").get("run_id", "")
        except ResponseError:  # not every server tells
            run_id = ""
        return [text(entry) for entry in self._ledger.run("reap", run_id)[1][0]]

    def pause(self, reason: str = "paused by hand") -> None:
        self._ledger.run("gate", "pause", reason)

    def resume(self) -> None:
        """Reopen after pause, and after stop; prompts in quarantine get a new chance."""
        self._ledger.run("gate", "resume", "")

    def stop(self, reason: str) -> None:
        self._ledger.run("gate", "stop", reason)

    def drain(self, worker: str) -> None:
        """The worker gets no more entries, and learns it at its next renewal."""
        self._ledger.run("gate", "drain", worker)

    def wait(self, last_id: str, timeout_s: float) -> list[events.Event]:
        """Events after last_id, as soon as there are any; [] after timeout_s."""
        return events.wait(self.client, self.run, last_id, timeout_s)

    def last_event(self) -> str:
        """Id to wait from: read it, look at the ledger, then wait; nothing is missed in between."""
        return events.last_id(self.client, self.run)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _setting(self, name: str) -> str:
        """Settings never change while the run lives."""
        self._settings = self._settings or self.fields()
        return self._settings[name]

    def _look_up(self, entry: str) -> tuple[str, str, int] | None:
        """Worker, prompt and version of an entry that another client reserved."""
        worker, prompt, version = self.client.hmget(keys.entry(self.run, entry), "worker", "prompt", "version")
        return (text(worker), text(prompt), int(version)) if worker else None

    def _exponential(self) -> str:
        """Exp(1), from the seeded generator; decides where a prompt re-enters the race."""
        return repr(self._random.expovariate(1.0))


def _below_maxmemory(client: redis.Redis, budget: int) -> None:
    if 0 < (maxmemory := memory.maxmemory(client)) <= budget:
        raise errors.ConfigError(f"byte_budget {budget} must be below Redis's maxmemory {maxmemory}: lower it")
