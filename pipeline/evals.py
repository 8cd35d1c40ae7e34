"""Held-out evaluation of one version, asked for by the coordinator and done by whichever worker claims it first.

    coordinator: request(v) ──▶ requested ──claim(worker)──▶ running ──finish──▶ done    ──▶ evals.jsonl
                                    ▲                          │  └─────fail──▶ failed
                                    └──── its worker is gone ──┘

The engines stay at v until it is over. Nothing here touches evidence or buffers. Each change is made only if the
evaluation is still in the state, and with the worker, that it is meant for; so a repeated or late call changes nothing.
"""

import time
from dataclasses import asdict, dataclass, fields

from redis import Redis

from pipeline import keys


@dataclass(frozen=True)
class Evaluation:
    """worker: its incarnation; success: mean outcome in [0, 1]; stderr: of it, over problems; seconds: of the work."""

    version: int
    state: str = "requested"  # requested | running | done | failed
    requested_ms: int = 0
    claimed_ms: int = 0
    worker: str = ""
    success: float | None = None
    stderr: float | None = None
    trajectories: int = 0
    seconds: float = 0.0
    error: str = ""

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed")


def request(client: Redis, run: str, version: int) -> None:
    """Ask for an evaluation of `version`; asked twice, the first one stands."""
    key = keys.evaluation(run, version)
    pipe = client.pipeline()
    pipe.hsetnx(key, "state", "requested")
    pipe.hsetnx(key, "requested_ms", _now_ms())
    pipe.zadd(keys.evaluations(run), {str(version): version})
    pipe.execute()


def claim(client: Redis, run: str, worker: str) -> int | None:
    """The version that this worker incarnation shall evaluate now, or None. Of several exactly one gets it."""
    newest = client.zrange(keys.evaluations(run), -1, -1)
    if not newest:
        return None
    version = int(newest[0])
    if client.hget(keys.evaluation(run, version), "state") != b"requested":
        return None
    claimed = _change(client, run, version, "requested", "", state="running", worker=worker, claimed_ms=_now_ms())
    return version if claimed else None


def finish(
    client: Redis,
    run: str,
    version: int,
    worker: str,
    *,
    success: float,
    stderr: float,
    trajectories: int,
    seconds: float,
) -> bool:
    """Record the result; False if it is no longer this worker's to give."""
    result = {"success": success, "stderr": stderr, "trajectories": trajectories, "seconds": seconds}
    return _change(client, run, version, "running", worker, state="done", **result)


def fail(client: Redis, run: str, version: int, worker: str, error: str) -> bool:
    """It cannot be done; `worker` "" is the coordinator's, whose request nobody claimed."""
    return _change(client, run, version, "running" if worker else "requested", worker, state="failed", error=error)


def give_back(client: Redis, run: str, version: int, worker: str) -> bool:
    """The worker leaves (a drain, a death): another may claim it."""
    return _change(client, run, version, "running", worker, state="requested", worker="")


def read(client: Redis, run: str, version: int) -> Evaluation | None:
    """The evaluation of `version`, if one was asked for."""
    found = client.hgetall(keys.evaluation(run, version))
    return _parse(version, found) if found else None


def read_all(client: Redis, run: str) -> list[Evaluation]:
    """Every evaluation that was asked for, in the order of versions."""
    found = (read(client, run, int(version)) for version in client.zrange(keys.evaluations(run), 0, -1))
    return [evaluation for evaluation in found if evaluation]


def as_line(evaluation: Evaluation) -> dict:
    """What evals.jsonl holds of a finished evaluation."""
    kept = ("version", "success", "stderr", "trajectories", "seconds")
    return {name: value for name, value in asdict(evaluation).items() if name in kept}


def _change(client: Redis, run: str, version: int, state: str, worker: str, /, **new: str | float) -> bool:
    """Set the fields `new` if the evaluation is in `state` with `worker` (WATCH: nobody comes in between)."""
    key = keys.evaluation(run, version)

    def change(pipe) -> bool:
        found = _parse(version, pipe.hgetall(key))
        pipe.multi()
        if (found.state, found.worker) != (state, worker):
            return False
        pipe.hset(key, mapping=new)
        return True

    return client.transaction(change, key, value_from_callable=True)


def _parse(version: int, found: dict[bytes, bytes]) -> Evaluation:
    kinds = {
        "requested_ms": int,
        "claimed_ms": int,
        "trajectories": int,
        "success": float,
        "stderr": float,
        "seconds": float,
    }
    known = {field.name for field in fields(Evaluation)} - {"version"}
    values = {name.decode(): value.decode() for name, value in found.items() if name.decode() in known}
    return Evaluation(version, **{name: kinds.get(name, str)(value) for name, value in values.items()})


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
