"""The bell and the record: every transition appends one readable entry to hr:{run}:events.

    transition ── XADD ──▶ events ── wait() ──▶ whoever waits (worker for FULL, trainer for READY, ...) looks again
                                 └─ archive() ─▶ events.jsonl, then trimmed: the whole run can be audited from the file

A Redis that lost its newest writes, or all of them, no longer knows what is archived already; then the archive gets a
line of the kind `lost`, whose id is that of the last event that both know. Nobody waits without a bound: `wait`
returns [] when its time is over.

Every event has `kind`, `ms`, and the fields of its kind:

    created          digest max_staleness batch_size buffer_capacity group_size publish_every
    prompts          added
    reserved         entry prompt worker engine version deadline value
    placed           entry prompt version buffer oldest     oldest: version of its oldest segment
    moved            entry from buffer                      pulled forward
    surplus          entry prompt                           finished, and no buffer needs it
    filtered         entry prompt                           finished, and its group carries no signal
    released         entry prompt worker reason why         failed retry cancelled lost surplus; why: for a person
    truncate         entry worker                           the worker shall finish it with what it has
    dropped          entry prompt                           a trainer that joined had trained it already
    consumed         buffer entries                         in the batch's order
    credited         version prompts                        as JSON, in the batch's order; evidence "receipt" only
    published        version event path digest
    checkpoint       version oldest                         oldest: batch that is kept
    memory           oldest                                 fewer are kept, because memory is short
    joined           trainer checkpoint head version dropped released credited oldest
    engine           engine state version reason
    drain            worker
    lease_expired    worker
    redis_restarted  reap_after
    quarantined      prompt reason
    stopped          reason
    paused           reason
    resumed          prompts                                how many left the quarantine
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from pipeline import jsonl, keys

BLOCK_S = 1.0  # one XREAD; well below any sane socket_timeout
READ_AT_ONCE = 1000
NOTHING = "0-0"  # before every event


@dataclass(frozen=True)
class Event:
    id: str
    kind: str
    fields: dict[str, str]


def wait(client: redis.Redis, run: str, last_id: str, timeout_s: float) -> list[Event]:
    """Events after last_id ("0": from the oldest kept), as soon as there are any; [] after timeout_s."""
    until = time.monotonic() + timeout_s
    socket_timeout = client.connection_pool.connection_kwargs.get("socket_timeout")
    longest = min(BLOCK_S, socket_timeout / 2) if socket_timeout else BLOCK_S
    while True:
        left = until - time.monotonic()
        # BLOCK 0 would mean for ever
        block = None if left <= 0 else max(1, int(1000 * min(left, longest)))
        reply = client.xread({keys.events(run): last_id}, count=READ_AT_ONCE, block=block)
        if reply:
            streams = reply.values() if isinstance(reply, dict) else [rows for _, rows in reply]
            return [_event(row) for rows in streams for row in rows]
        if left <= 0:
            return []


def last_id(client: redis.Redis, run: str) -> str:
    """Id of the newest event."""
    newest = client.xrevrange(keys.events(run), count=1)
    return newest[0][0].decode() if newest else "0"


def newest(client: redis.Redis, run: str, count: int) -> list[Event]:
    """The newest `count` events, oldest first."""
    return [_event(row) for row in reversed(client.xrevrange(keys.events(run), count=count))]


def archive(client: redis.Redis, run: str, path: Path, keep: int = 10_000) -> int:
    """Append the events not yet in the JSONL file, then trim the stream to `keep`; never above what is archived.

    The file's own last line says where to go on, so that a crash at any point loses and doubles nothing.
    """
    written = 0
    with jsonl.appending(path) as file:
        newest = (jsonl.last(file) or {}).get("id")
        for line in newer(client, run, newest):
            file.write(jsonl.as_line(line))
            newest, written = line["id"], written + 1
        file.flush()
        os.fsync(file.fileno())
    kept = client.xrevrange(keys.events(run), max=newest, count=keep) if newest else []
    if len(kept) == keep:
        client.xtrim(keys.events(run), minid=kept[-1][0], approximate=False)
    return written


def newer(client: redis.Redis, run: str, newest: str | None) -> Iterator[dict[str, str]]:
    """The lines that follow in an archive whose last line has the id `newest`: what was lost, then what is new."""
    if newest is not None:
        found = client.xrevrange(keys.events(run), max=newest, count=1)
        known = found[0][0].decode() if found else NOTHING
        if known != newest:
            newest = known
            yield {"id": known, "kind": "lost"}
    while rows := client.xrange(keys.events(run), min=f"({newest}" if newest else "-", count=READ_AT_ONCE):
        for event in map(_event, rows):
            newest = event.id
            yield {"id": event.id, "kind": event.kind, **event.fields}


def _event(row: tuple[bytes, dict[bytes, bytes]]) -> Event:
    fields = {k.decode(): v.decode() for k, v in row[1].items()}
    return Event(row[0].decode(), fields.pop("kind"), fields)
