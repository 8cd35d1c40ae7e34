"""The whole ledger as metrics, which the coordinator process serves: read at the moment of a scrape, changed by none.

A scrape is a dozen commands to Redis, as `headrace status` is, whatever the number of prompts and entries. Without a
ledger that answers there is headrace_ledger_up = 0, and nothing else.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import redis

from pipeline import evals, keys, memory
from pipeline.config import Config
from pipeline.errors import UnknownRun
from pipeline.ledger_types import BufferView
from pipeline.ledger_view import LedgerView
from pipeline.metrics import Family, Histogram, by, counter, gauge

BUFFER_STATES = ("PENDING", "READY", "READY_WITH_CAPACITY", "STUCK", "CONSUMED")
ENGINE_STATES = ("starting", "ready", "draining", "loading", "failed")
RELEASED = ("failed", "retry", "cancelled", "lost", "surplus")


class LedgerMetrics:
    """Of one run; read from a thread of the server's."""

    def __init__(self, client: redis.Redis, config: Config):
        self._ledger, self._config = LedgerView(client, config.run.name), config

    def families(self) -> Iterator[Family]:
        try:
            found = list(self._found())
        except (redis.RedisError, UnknownRun):
            found = []
        yield gauge("headrace_ledger_up", "Whether Redis answers, and knows the run", float(bool(found)))
        yield from found

    def _found(self) -> Iterator[Family]:
        status, fields, buffers = self._ledger.status(), self._ledger.fields(), self._ledger.buffers()
        yield from self._progress(status)
        yield from _of_buffers(status, buffers)
        yield from _of_entries(status, int(fields["max_staleness"]))
        yield from _of_processes(status)
        yield from _failures(status, fields)
        yield from self._memory(status, fields)
        yield from self._evaluation()

    def _progress(self, status: dict[str, Any]) -> Iterator[Family]:
        version = status["version"]
        yield gauge("headrace_published_version", "Updates that are made and published", version)
        yield gauge("headrace_planned_updates", "run.total_steps", self._config.run.total_steps)
        if published := self._ledger.weights(version):
            help = "When the newest version was published"
            yield gauge("headrace_last_publication_timestamp_seconds", help, published.time / 1000)
        yield gauge("headrace_checkpoint_version", "Version of the newest durable checkpoint", status["checkpoint"])
        yield gauge("headrace_run_paused", "Whether a person has paused the run", float(bool(status["paused"])))
        yield gauge("headrace_run_stopped", "Whether the run has stopped itself", float(bool(status["stopped"])))

    def _memory(self, status: dict[str, Any], fields: dict[str, str]) -> Iterator[Family]:
        used, limit = memory.usage(self._ledger.client)
        yield gauge("headrace_redis_memory_bytes", "Memory that Redis uses", used)
        if limit:
            yield gauge("headrace_redis_memory_limit_bytes", "Redis's maxmemory", limit)
        trajectories = status["stored"] + status["reserved"] * int(fields["group_launch"])
        committed = trajectories * int(fields["max_trajectory_bytes"])
        yield gauge("headrace_payload_committed_bytes", "At most: of what is stored or in flight", committed)
        yield gauge("headrace_payload_budget_bytes", "buffers.byte_budget", int(fields["byte_budget"]))
        full = float(status["memory_full"])
        yield gauge("headrace_memory_full", "Whether nothing is admitted until the next checkpoint", full)

    def _evaluation(self) -> Iterator[Family]:
        client, run = self._ledger.client, self._ledger.run
        newest = client.zrange(keys.evaluations(run), -2, -1)  # the last one may be going on
        found = filter(None, (evals.read(client, run, int(version)) for version in newest))
        for done in [evaluation for evaluation in found if evaluation.state == "done"][-1:]:
            yield gauge("headrace_evaluated_version", "Newest version that was evaluated", done.version)
            yield gauge("headrace_evaluation_success_ratio", "Its success on held-out problems", done.success)
            yield gauge("headrace_evaluation_stderr_ratio", "Standard error of that, over problems", done.stderr)
            yield gauge("headrace_evaluation_seconds", "How long that evaluation took", done.seconds)


def _of_buffers(status: dict[str, Any], buffers: list[BufferView]) -> Iterator[Family]:
    states = dict.fromkeys(BUFFER_STATES, 0) | Counter(buffer.state for buffer in buffers)
    yield by("gauge", "headrace_buffers", "Buffers that are kept or open", "state", states)
    yield gauge("headrace_head_buffer", "The buffer that is trained on next", status["head"])
    yield gauge("headrace_head_awaited", "Whether the trainer waits for head", float(status["awaited"]))
    for head in [buffer for buffer in buffers if buffer.id == status["head"]]:
        found = {state: float(state == head.state) for state in BUFFER_STATES}
        yield by("gauge", "headrace_head_state", "Which state head is in", "state", found)
        yield gauge("headrace_head_occupied_entries", "Finished entries in head", head.occupied)
        yield gauge("headrace_head_reserved_entries", "Entries in flight that head has a place for", head.reserved)
        yield gauge("headrace_head_due_entries", "Entries in flight that head is the last buffer for", head.due)
        yield gauge("headrace_head_target_entries", "buffers.batch_size: entries that make head READY", head.target)


def _of_entries(status: dict[str, Any], max_staleness: int) -> Iterator[Family]:
    yield gauge("headrace_reserved_entries", "Entries in flight", status["reserved"])
    yield gauge("headrace_stored_trajectories", "Trajectories that the ledger keeps", status["stored"])
    finished = {outcome: status[outcome] for outcome in ("placed", "surplus", "filtered")}
    help = "Finished entries: placed in a buffer, needed by none, or without a learning signal"
    yield by("counter", "headrace_entries_finished_total", help, "outcome", finished)
    released = dict.fromkeys(RELEASED, 0) | status["released"]
    yield by("counter", "headrace_entries_released_total", "Entries given back unfinished", "reason", released)
    yield counter("headrace_entries_consumed_total", "Entries handed to the trainer", status["consumed"])
    ages = status["staleness"]
    bounds = [*range(max_staleness + 1), float("inf")]
    counts = {bound: sum(n for age, n in ages.items() if age <= bound) for bound in bounds}
    histogram = Histogram(counts, sum(age * n for age, n in ages.items()))
    help = "Updates between the version that began an entry and its use"
    yield Family("histogram", "headrace_entry_staleness_updates", help, [({}, histogram)])
    prompts = {state.replace(" ", "_"): count for state, count in status["prompts"].items()}
    yield by("gauge", "headrace_prompts", "Prompts by state", "state", prompts)


def _of_processes(status: dict[str, Any]) -> Iterator[Family]:
    engines = status["engines"]
    versions = {engine["name"]: engine["version"] for engine in engines}
    yield by("gauge", "headrace_engine_version", "Version that the engine has proved; -1: none", "engine", versions)
    states = [
        ({"engine": engine["name"], "state": state}, float(state == engine["state"]))
        for engine in engines
        for state in ENGINE_STATES
    ]
    yield Family("gauge", "headrace_engine_state", "Which state the engine is in", states)
    reserved: Counter[str] = Counter()
    for worker in status["workers"]:  # two incarnations of one name, until the lease of the dead one ends
        reserved[worker["name"].rpartition("-")[0]] += worker["in_flight"]
    yield gauge("headrace_workers", "Workers with a lease", len(reserved))
    yield by("gauge", "headrace_worker_reserved_entries", "Entries in flight at the worker", "worker", reserved)


def _failures(status: dict[str, Any], fields: dict[str, str]) -> Iterator[Family]:
    for what, help in {"failures": "Failures in a row", "filtered": "Filtered groups in a row"}.items():
        share = status[f"consecutive_{what}"] / int(fields[f"max_consecutive_{what}"])
        yield gauge(f"headrace_consecutive_{what}_ratio", f"{help}, as a share of how many stop the run", share)
