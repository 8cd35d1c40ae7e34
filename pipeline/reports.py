"""What `headrace status | buffers | events | prompts | workers` answer: read from Redis, shown as text or JSON.

run's name ─▶ run.toml ─▶ Redis: --redis, REDIS_URL, redis.url; else the server of the `headrace up` that runs;
                                 else the run's own files, served for the moment of the answer
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import redis

from pipeline import engine_list, evals, keys
from pipeline.alarms import alarms
from pipeline.config import Config
from pipeline.coordinator import Coordinator
from pipeline.crew import scaled, want_workers, wanted_workers
from pipeline.doing import doing
from pipeline.errors import HeadraceError, UnknownRun
from pipeline.programs import TRAINER_GRACE_S
from pipeline.progress import last_metrics, read_processes, read_shares
from pipeline.redis_client import connect, find_url, trouble
from pipeline.redis_server import RedisServer
from pipeline.run_folder import find_run, holder_of, locked
from pipeline.run_state import run_state
from pipeline.secrets import masked

DOWN_TIMEOUT_S = TRAINER_GRACE_S + 60


@contextlib.contextmanager
def ledger_of(
    run: str | None, redis_url: str | None = None, up: bool = False, tell: bool = False
) -> Iterator[Coordinator]:
    """The ledger of the run called `run` (None: of the only one). up: it must be running here; tell: here or elsewhere.

    Raises HeadraceError if there is no such run, or no Redis that knows it, and OtherSchema.
    """
    config = find_run(run)
    holder = holder_of(config.folder)
    if up and holder is None:
        raise HeadraceError(
            f"the run {config.run.name!r} is not up here; `headrace up` starts it, `docker compose up -d` where "
            "its compose.yaml is"
        )
    url = find_url(redis_url, config.redis.url) or (holder or {}).get("redis")
    with contextlib.ExitStack() as stack:
        if url is None and tell:
            raise HeadraceError(f"the run {config.run.name!r} is not up, and a new `headrace up` takes its settings")
        if url is None:
            url = stack.enter_context(served(config))
        client = stack.enter_context(connect(url, timeout_s=5))
        ledger = Coordinator(client, config.run.name)
        try:
            with contextlib.suppress(UnknownRun):  # which is for who needs more than that it can be read
                ledger.fields()
            yield ledger
        except redis.RedisError as error:
            raise HeadraceError(f"{masked(url)}: {trouble(error)}") from None


@contextlib.contextmanager
def served(config: Config) -> Iterator[str]:
    """The Redis files of a run that is not up, served for as long as this lasts."""
    if not (config.folder / "redis").is_dir():
        raise HeadraceError(
            f"the run {config.run.name!r} has no Redis: it was never up here. `headrace up` starts it; "
            "--redis URL or REDIS_URL names a server elsewhere"
        )
    with locked(config.folder, report=True):
        server = RedisServer.start(config.folder / "redis")
        try:
            yield server.url
        finally:
            server.stop()


def status(ledger: Coordinator, config: Config, redis_url: str | None = None) -> dict[str, Any]:
    """Of a run that is not up, only what it has done: who did it is gone, and the next update waits for nobody."""
    found, reported = ledger.status(), processes(ledger)
    state = run_state(config, found, reported, redis_url)
    if state.name != "up":
        found |= {"trainer": "", "engines": [], "workers": [], "waiting": state.sentence}
        reported = []
    evaluations = [evaluation(e) for e in evals.read_all(ledger.client, ledger.run)]
    server = ledger.client.connection_pool.connection_kwargs  # its address for redis-cli, without a password
    address = server.get("path") or f"{server['host']}:{server['port']}"
    warnings = alarms(last_metrics(ledger.client, ledger.run))
    shown = {"run": ledger.run, "state": str(state), "redis": address, "alarms": "; ".join(warnings)}
    shown |= {"forked from": config.run.parent} if config.run.parent else {}
    shown |= found | {"trainer_time": read_shares(ledger.client, ledger.run)}
    return shown | {"evaluations": evaluations, "processes": reported}


def evaluation(found: evals.Evaluation) -> dict[str, Any]:
    """Done or not: one that failed says why."""
    names = ("version", "state", "success", "stderr", "trajectories", "seconds", "error")
    return {name: getattr(found, name) for name in names}


def processes(ledger: Coordinator) -> list[dict[str, Any]]:
    now = time.time_ns() // 1_000_000
    rows = []
    for process in read_processes(ledger.client, ledger.run):
        shown = {key: process.get(key, "") for key in ("name", "role", "pid", "host")}
        since = max(0, now - int(process.get("since_ms", now))) // 1000
        rows.append(shown | {"seconds": since, "does": doing(process)})
    return rows


def buffers(ledger: Coordinator) -> list[dict[str, Any]]:
    return [
        {
            "buffer": view.id,
            "state": view.state,
            "occupied": view.occupied,
            "reserved": view.reserved,
            "due": view.due,
            "over": view.over,
            "capacity": view.capacity,
        }
        for view in ledger.buffers()
    ]


def events(ledger: Coordinator, count: int, follow: bool) -> Iterator[dict[str, Any]]:
    """The newest `count` events, oldest first; then, if `follow`, those to come."""
    last = "0"
    for id, fields in reversed(ledger.client.xrevrange(keys.events(ledger.run), count=count)):
        last = id.decode()
        yield {"id": last} | {k.decode(): v.decode(errors="replace") for k, v in fields.items()}
    while follow:
        for event in ledger.wait(last, timeout_s=5):
            last = event.id
            yield {"id": event.id, "kind": event.kind, **event.fields}


def event_line(event: dict[str, Any]) -> str:
    rest = dict(event)
    ms = int(rest.pop("id").split("-")[0])
    at = time.strftime("%H:%M:%S", time.localtime(ms / 1000)) + f".{ms % 1000:03}"
    kind = rest.pop("kind", "?")
    return f"{at} {kind:<15} " + " ".join(f"{key}={value}" for key, value in rest.items())


def prompts(ledger: Coordinator, count: int) -> list[dict[str, Any]]:
    rows = sorted(ledger.prompts(), key=lambda row: abs(row["value"] - 0.5))
    return [
        {key: round(v, 3) if isinstance(v, float) else v for key, v in row.items()}
        for row in rows[: count or len(rows)]
    ]


def workers(ledger: Coordinator) -> list[dict[str, Any]]:
    reported = {process["name"]: process for process in processes(ledger) if process["role"] == "worker"}
    rows = []
    for worker in ledger.workers():
        process = reported.get(_process_of(worker["name"]), {})
        rows.append(
            {
                "worker": worker["name"],
                "in flight": worker["in_flight"],
                "draining": worker["drain"],
                "host": process.get("host", ""),
                "pid": process.get("pid", ""),
                "does": process.get("does", "nothing: it does not report"),
            }
        )
    return rows


def scale(ledger: Coordinator, count: int) -> dict[str, Any]:
    """Tell the local launcher how many workers to keep."""
    before = wanted_workers(ledger.client, ledger.run)
    after = scaled(before, count)
    want_workers(ledger.client, ledger.run, after)
    message = f"workers: {len(before)} → {count}; `headrace workers list {ledger.run}` shows them"
    return {"message": message, "run": ledger.run, "before": before, "workers": after}


def drain(ledger: Coordinator, worker: str) -> dict[str, Any]:
    """Drain one worker, by its name or the name of its incarnation."""
    known = [w["name"] for w in ledger.workers()]
    matching = [name for name in known if worker in (name, _process_of(name))]
    if not matching:
        raise HeadraceError(f"no worker {worker!r}; there are {', '.join(known) or 'none'}")
    wanted, ending = wanted_workers(ledger.client, ledger.run), set(map(_process_of, matching))
    for name in matching:
        ledger.drain(name)
    if ending & set(wanted):  # the launcher's: one worker fewer, and a later `scale N` counts without it
        want_workers(ledger.client, ledger.run, [name for name in wanted if name not in ending])
    return {"message": f"{', '.join(matching)} finishes what it has and ends", "run": ledger.run, "workers": matching}


def engines(ledger: Coordinator) -> list[dict[str, Any]]:
    return [asdict(engine) for engine in ledger.engines()]


def add_engine(ledger: Coordinator, url: str) -> dict[str, Any]:
    """Tell the coordinator process of one more engine; the ledger's event wakes it."""
    ledger.fields()  # the run must be there
    name, url = engine_list.add(ledger.client, ledger.run, url)
    if name not in {engine.name for engine in ledger.engines()}:
        ledger.mark_engine(name, "starting", "not verified yet", url)
    message = f"engine {name} joins; `headrace engines list {ledger.run}` shows when it is ready"
    return {"message": message, "run": ledger.run, "engine": name, "url": url}


def remove_engine(ledger: Coordinator, engine: str) -> dict[str, Any]:
    known = {found.name: found for found in ledger.engines()}
    if engine not in known:
        raise HeadraceError(f"no engine {engine!r}; there are {', '.join(known) or 'none'}")
    engine_list.remove(ledger.client, ledger.run, engine)
    ledger.remove_engine(engine)
    left = sum(e.state == "ready" for e in known.values() if e.name != engine)
    message = f"engine {engine} gets nothing new; end it once it has answered what it has. {left} ready ones are left"
    return {"message": message, "run": ledger.run, "engine": engine, "url": known[engine].url}


def down(run: str | None) -> dict[str, Any]:
    """SIGTERM to the `headrace up` of the run, and wait until it has stopped everything."""
    config = find_run(run)
    holder = holder_of(config.folder)
    if holder is None:
        return {"message": f"the run {config.run.name!r} is not up", "run": config.run.name, "was_up": False}
    os.kill(int(holder["pid"]), signal.SIGTERM)
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    while holder_of(config.folder) is not None:
        if time.monotonic() > deadline:
            raise HeadraceError(f"process {holder['pid']} has not ended within {DOWN_TIMEOUT_S} s of SIGTERM")
        time.sleep(0.1)
    message = f"the run {config.run.name!r} is down; `headrace up` goes on"
    return {"message": message, "run": config.run.name, "was_up": True}


def _process_of(incarnation: str) -> str:
    """The process whose incarnation this is: `worker-0` of `worker-0-3fa9…`."""
    return incarnation.rpartition("-")[0]
