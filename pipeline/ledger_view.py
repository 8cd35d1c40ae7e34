"""The ledger as a reader sees it: nothing here changes anything, and all of it is readable by redis-cli alone."""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import redis

from pipeline import errors, keys, memory
from pipeline.ledger_types import BufferView, EngineView, Weights

LOOK_S = 0.5
EVIDENCE = ("alpha", "beta", "event", "visits", "epoch")  # of a prompt: lua/_race.lua


class LedgerView:
    """Reads one run's ledger."""

    def __init__(self, client: redis.Redis, run: str):
        if client.connection_pool.connection_kwargs.get("decode_responses"):
            raise errors.ConfigError("expected a Redis client with decode_responses=False: trajectories are bytes")
        self.client, self.run = client, run

    def fields(self) -> dict[str, str]:
        """hr:{run}: version, head, event, digest, trainer, paused, stopped, and the settings; `rules` and `window` are
        the scripts' own short forms of settings and buffers (lua/_run.lua, lua/_buffers.lua).

        Raises UnknownRun, or OtherSchema unless a headrace made the run that keeps it as this one does.
        """
        found = _strings(self.client.hgetall(keys.run(self.run)))
        if not found:
            raise errors.UnknownRun(f"run {self.run!r} is not in this Redis: create it first, or check redis.url")
        if (schema := found.get("schema")) != str(keys.SCHEMA):
            raise errors.OtherSchema(
                f"run {self.run!r} was made by another headrace, which keeps it in schema {schema}, this one in "
                f"{keys.SCHEMA}: choose another name, finish the run with that headrace, or begin a new run from its "
                f"newest checkpoint with `headrace fork {self.run}`"
            )
        return found

    def wait_for_run(
        self,
        digest: str,
        timeout_s: float,
        stop: Callable[[], bool] = lambda: False,
        waiting: Callable[[str], None] = lambda sentence: None,
    ) -> bool:
        """Wait until the coordinator has made the run; False if `stop` answered True before. waiting: told what for.

        Raises OtherSettings unless the run was made with the settings of `digest`, UnknownRun after `timeout_s`, and at
        once whatever else `fields` does.
        """
        end = time.monotonic() + timeout_s
        while not stop():
            try:
                found = self.fields()
            except errors.UnknownRun:
                if time.monotonic() > end:
                    raise
                waiting(f"run {self.run} to be created by the coordinator")
                time.sleep(LOOK_S)
                continue
            if found["digest"] != digest:
                raise errors.OtherSettings(
                    f"run {self.run!r} has settings {found['digest']}, this process was given {digest}: start it "
                    "with the run's own run.toml"
                )
            return True
        return False

    def buffers(self) -> list[BufferView]:
        """Kept batches and the window head .. version + max_staleness, in order."""
        run = self.fields()
        numbers = range(int(run["oldest"]), int(run["version"]) + int(run["max_staleness"]) + 1)
        with self.client.pipeline(transaction=False) as pipe:
            for number in numbers:
                pipe.hgetall(keys.buffer(self.run, number))
            found = map(_strings, pipe.execute())
        return [_buffer(number, fields, run) for number, fields in zip(numbers, found, strict=True)]

    def versions(self) -> dict[int, Weights]:
        """What was published: version -> weights."""
        found = self.client.hgetall(keys.versions(self.run))
        return {int(v): Weights(int(v), **json.loads(record)) for v, record in sorted(found.items(), key=_number)}

    def weights(self, version: int) -> Weights | None:
        record = self.client.hget(keys.versions(self.run), str(version))
        return Weights(version, **json.loads(record)) if record else None

    def engines(self) -> list[EngineView]:
        names = [name.decode() for name in self.client.zrange(keys.engines(self.run), 0, -1)]
        with self.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hgetall(keys.engine(self.run, name))
            pipe.hgetall(keys.engine_urls(self.run))
            *found, urls = map(_strings, pipe.execute())
        return sorted(
            (
                EngineView(name, urls.get(name, ""), int(f["version"]), f["state"], f["reason"])
                for name, f in zip(names, found, strict=True)
                if f
            ),
            key=lambda engine: engine.name,
        )

    def load(self) -> dict[str, int]:
        """Entries in flight that each engine began: engine -> how many."""
        entries = self.client.zrange(keys.reserved(self.run), 0, -1)
        with self.client.pipeline(transaction=False) as pipe:
            for entry in entries:
                pipe.hget(keys.entry(self.run, entry.decode()), "engine")
            return dict(Counter(name.decode() for name in pipe.execute() if name))  # None: it has just left

    def workers(self) -> list[dict[str, Any]]:
        """name, lease_ends_ms, in_flight, drain of each live incarnation."""
        leases = self.client.zrange(keys.workers(self.run), 0, -1, withscores=True)
        with self.client.pipeline(transaction=False) as pipe:
            for name, _ in leases:
                pipe.zcard(keys.worker_entries(self.run, name.decode()))
                pipe.hget(keys.worker(self.run, name.decode()), "drain")
            found = pipe.execute()
        return [
            {"name": name.decode(), "lease_ends_ms": int(ends), "in_flight": in_flight, "drain": drain == b"1"}
            for (name, ends), in_flight, drain in zip(leases, found[::2], found[1::2], strict=True)
        ]

    def prompts(self) -> list[dict[str, Any]]:
        """id, state (idle | in flight | quarantined), value, alpha, beta, visits, attempts, lost of every prompt."""
        states = dict.fromkeys(self.client.zrange(keys.prompts(self.run), 0, -1), "idle")
        states |= dict.fromkeys(self.client.zrange(keys.quarantined(self.run), 0, -1), "quarantined")
        entries = self.client.zrange(keys.reserved(self.run), 0, -1)
        with self.client.pipeline(transaction=False) as pipe:
            for entry in entries:
                pipe.hget(keys.entry(self.run, entry.decode()), "prompt")
            states |= dict.fromkeys(filter(None, pipe.execute()), "in flight")
            names = sorted(states)
            wanted = ("value", "alpha", "beta", "visits", "attempts", "lost")
            for name in names:
                pipe.hmget(keys.prompt(self.run, name.decode()), wanted)
            found = pipe.execute()
        return [
            {"id": n.decode(), "state": states[n], **{k: float(v) for k, v in zip(wanted, row, strict=True)}}
            for n, row in zip(names, found, strict=True)
        ]

    def evidence(self) -> list[dict[str, Any]]:
        """id, alpha, beta (as at policy event `event`), visits and epoch of every prompt: what `add_prompts` takes, and
        all that the race between them depends on."""
        with self.client.pipeline() as pipe:  # at once: one that moves from here to there must not be missed
            pipe.zrange(keys.prompts(self.run), 0, -1)
            pipe.zrange(keys.quarantined(self.run), 0, -1)
            pipe.zrange(keys.reserved(self.run), 0, -1)
            idle, quarantined, entries = pipe.execute()
        with self.client.pipeline(transaction=False) as pipe:
            for entry in entries:
                pipe.hget(keys.entry(self.run, entry.decode()), "prompt")
            ids = [id.decode() for id in sorted({*idle, *quarantined, *filter(None, pipe.execute())})]
            for id in ids:
                pipe.hmget(keys.prompt(self.run, id), EVIDENCE)
            found = pipe.execute()
        return [
            {"id": id, **{name: float(value) for name, value in zip(EVIDENCE, row, strict=True)}}
            for id, row in zip(ids, found, strict=True)
            if None not in row  # Redis was emptied meanwhile
        ]

    def status(self) -> dict[str, Any]:
        """Numbers of the whole run, and one sentence saying what the next update waits for ("" if for nothing).
        awaited: the trainer has asked for head and waits, which lets the proactive filter act."""
        run = self.fields()
        with self.client.pipeline(transaction=False) as pipe:
            pipe.hgetall(keys.counters(self.run))
            pipe.zcard(keys.reserved(self.run))
            pipe.zcard(keys.prompts(self.run))
            pipe.zcard(keys.quarantined(self.run))
            pipe.zrange(keys.reserved(self.run), 0, 0)
            counters, reserved, idle, quarantined, first = pipe.execute()
        counts = {name: int(count) for name, count in sorted(_strings(counters).items())}
        split = {"released": {}, "staleness": {}}
        for name in [n for n in counts if ":" in n]:
            group, _, key = name.partition(":")
            split[group][int(key) if group == "staleness" else key] = counts.pop(name)
        oldest = _strings(self.client.hgetall(keys.entry(self.run, first[0].decode()))) if first else {}
        status = {name: int(run[name]) for name in ("version", "head", "event", "oldest", "checkpoint", "stored")}
        status |= {"placed": int(run["finished"]), "surplus": 0, "filtered": 0, "consumed": 0} | counts | split
        status |= {"prompts": {"idle": idle, "in flight": reserved, "quarantined": quarantined}, "reserved": reserved}
        status |= {name: int(run[name]) for name in ("consecutive_failures", "consecutive_filtered")}
        status |= {name: run[name] for name in ("trainer", "paused", "stopped", "digest")}
        status["awaited"] = run["awaited"] == run["head"]
        status["memory_full"] = _budget_full(run, reserved) or memory.is_full(self.client)
        status |= {"engines": [asdict(e) for e in self.engines()], "workers": self.workers()}
        return status | {"waiting": self._waiting(status, run, oldest)}

    def _waiting(self, status: dict[str, Any], run: dict[str, str], oldest: dict[str, str]) -> str:
        head, version = status["head"], status["version"]
        if status["stopped"]:
            return f"stopped: {status['stopped']}"
        if head >= version + int(run["publish_every"]):
            return f"update {head - 1} is being made: version {head} is not published yet"
        buffer = _buffer(head, _strings(self.client.hgetall(keys.buffer(self.run, head))), run)
        if buffer.state.startswith("READY"):
            return "" if status["trainer"] else "no trainer has joined"
        text = f"buffer {head}: {buffer.occupied} of {buffer.target} occupied, {status['reserved']} in flight"
        if status["paused"]:
            text += f", paused: {status['paused']}"
        if status["memory_full"]:
            return f"{text}; memory is used up until the trainer's next checkpoint"
        if oldest:
            return (
                f"{text}; most urgent: prompt {oldest['prompt']} at worker {oldest['worker']}, due {oldest['deadline']}"
            )
        if not any(e["state"] == "ready" for e in status["engines"]):
            return f"{text}; no engine is ready"
        if (version := self._evaluated()) is not None:
            return f"{text}; the engines stay at version {version} until it is evaluated"
        return f"{text}; no worker has reserved"

    def _evaluated(self) -> int | None:
        """The version whose evaluation is not over."""
        newest = self.client.zrange(keys.evaluations(self.run), -1, -1)
        state = self.client.hget(keys.evaluation(self.run, int(newest[0])), "state") if newest else None
        return int(newest[0]) if state in (b"requested", b"running") else None


def _buffer(number: int, fields: dict[str, str], run: dict[str, str]) -> BufferView:
    def count(name: str) -> int:
        return int(fields.get(name, 0))

    return BufferView(
        id=number,
        state=fields.get("state", "PENDING"),
        **{name: count(name) for name in ("occupied", "reserved", "due", "over")},
        capacity=int(run["buffer_capacity"]),
        target=int(run["batch_size"]),
        min_version=int(fields["min_version"]) if fields.get("min_version") else None,
    )


def _budget_full(run: dict[str, str], reserved: int) -> bool:
    """Would Reserve answer MEMORY?"""
    trajectories = int(run["stored"]) + (reserved + 1) * int(run["group_launch"])
    return 0 < int(run["byte_budget"]) < trajectories * int(run["max_trajectory_bytes"])


def _strings(found: dict[bytes, bytes]) -> dict[str, str]:
    return {k.decode(): v.decode(errors="replace") for k, v in found.items()}


def _number(item: tuple[bytes, bytes]) -> int:
    return int(item[0])
