"""An audit's look at the ledger itself, if its Redis is there: is it where its events lead, and are the payloads whole?

one MULTI ─▶ Snapshot: version, head, event · reserved · buffers, and the newest event of that moment
             └ audit.py replays up to that event ─▶ compare: the same entries in the same places
entries' ids ◀─▶ streams' ids ─▶ payload: every placed entry has its payloads, and no payload is unowned
"""

from dataclasses import dataclass
from typing import Any

import redis

from pipeline import events, keys
from pipeline.audit_findings import Findings
from pipeline.audit_replay import Replay, position
from pipeline.ledger_view import LedgerView

ATTEMPTS = 100  # to find the ledger between two moves of its window
READ_AT_ONCE = 100  # payloads
OWNERS = ("OCCUPIED", "CONSUMED")


@dataclass(frozen=True)
class Snapshot:
    """The ledger at one moment."""

    lines: list[dict[str, Any]]  # of the archive: those that were not in the file yet
    fields: dict[str, str]
    reserved: set[str]
    buffers: dict[int, set[str]]


def look(ledger: LedgerView, newest: str | None) -> Snapshot:
    """newest: id of the archive's last line."""
    client, run = ledger.client, ledger.run
    for _ in range(ATTEMPTS):
        before = ledger.fields()
        numbers = range(int(before["oldest"]), int(before["version"]) + int(before["max_staleness"]) + 2)
        with client.pipeline(transaction=True) as pipe:
            pipe.hgetall(keys.run(run))
            pipe.xrevrange(keys.events(run), count=1)
            pipe.zrange(keys.reserved(run), 0, -1)
            for number in numbers:
                pipe.zrange(keys.buffer_entries(run, number), 0, -1)
            fields, last, reserved, *members = pipe.execute()
        fields = {name.decode(): value.decode() for name, value in fields.items()}
        if all(fields.get(name) == before[name] for name in ("oldest", "version")):
            break
    until = position(last[0][0].decode()) if last else (0, 0)
    lines = [line for line in events.newer(client, run, newest) if position(line["id"]) <= until]
    buffers = {number: _names(found) for number, found in zip(numbers, members, strict=True)}
    return Snapshot(lines, fields, _names(reserved), buffers)


def compare(found: Snapshot, replay: Replay, findings: Findings) -> None:
    """The events lead to the ledger as it is."""
    for name in ("version", "head", "event"):
        here, there = getattr(replay, name), int(found.fields[name])
        findings.expect("monotone", here == there, f"the events lead to {name} {here}, the ledger is at {there}")
    if replay.receipt:
        same = replay.credited == int(found.fields["credited"])
        what = (
            f"the events lead to credits below {replay.credited}, the ledger has those below {found.fields['credited']}"
        )
        findings.expect("credited", same, what)
    for entry in sorted(found.reserved | replay.in_flight.keys()):
        same = (entry in found.reserved) == (entry in replay.in_flight)
        findings.expect("conservation", same, "in flight in the ledger or in its events, and not in both", entry)
    for buffer, members in found.buffers.items():
        told = replay.members.get(buffer, set()) | set(replay.consumed.get(buffer, ()))
        for entry in sorted(members | told):
            same = (entry in members) == (entry in told)
            findings.expect("conservation", same, "placed in the ledger or in its events, not in both", entry, buffer)


def check_payloads(ledger: LedgerView, found: Snapshot, findings: Findings) -> None:
    client, run = ledger.client, ledger.run
    entries = sorted(set().union(*found.buffers.values()))
    with client.pipeline(transaction=False) as pipe:
        for entry in entries:
            pipe.hmget(keys.entry(run, entry), "worker", "ids")
        owners = pipe.execute()
    owned = {
        (worker.decode(), id): entry
        for entry, (worker, ids) in zip(entries, owners, strict=True)
        if worker and ids
        for id in ids.decode().split()
    }
    stored = dict(_stored(client, run))
    findings.checked["payload"] += len(owned.keys() & stored.keys())
    for stream, id in sorted(owned.keys() ^ stored.keys()):
        entry = owned.get((stream, id)) or stored[stream, id]
        # the run may have gone on since; this look is at one moment
        with client.pipeline(transaction=True) as pipe:
            pipe.hmget(keys.entry(run, entry), "state", "worker", "ids")
            pipe.xrange(keys.trajectories(run, stream), id, id)
            (state, worker, ids), there = pipe.execute()
        owns = (state or b"").decode() in OWNERS and worker == stream.encode() and id in ids.decode().split()
        what = f"payload {id} of {stream} is " + ("missing" if owns else "unowned")
        findings.expect("payload", owns == bool(there), what, entry)


def _stored(client: redis.Redis, run: str):
    """((stream, id), entry) of every payload of the run."""
    prefix = keys.trajectories(run, "")
    for key in client.scan_iter(f"{prefix}*"):
        last = "-"
        while rows := client.xrange(key, min=last, count=READ_AT_ONCE):
            for id, fields in rows:
                yield (key.decode().removeprefix(prefix), id.decode()), fields[b"entry"].decode()
            last = f"({rows[-1][0].decode()}"


def _names(found: list[bytes]) -> set[str]:
    return {name.decode() for name in found}
