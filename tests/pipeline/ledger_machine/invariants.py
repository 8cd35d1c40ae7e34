"""The invariants of the ledger, read from Redis alone, each by its name in protocol.md.

    bound · capacity · soundness · conservation · once · payload · order · monotone

`refusal writes nothing` and `liveness` are about what happens, not about what is there: the tests check them.
"""

from typing import Any

from pipeline import keys
from pipeline.ledger_settings import Settings

IN_A_BUFFER = {"OCCUPIED", "CONSUMED"}
TOMBSTONES = {"RELEASED", "SURPLUS", "FILTERED"}


class Contents:
    """What Redis holds of one run, by kind of key: hashes as {field: text}, sorted sets as {member: score}."""

    def __init__(self, run: str, everything: dict[bytes, Any]):
        self.run, self.streams, self.hashes, self.zsets = {}, {}, {}, {}
        start = len(keys.run(run))
        for key, value in everything.items():
            kind, _, name = key.decode()[start:].removeprefix(":").partition(":")
            if not kind:
                self.run = _texts(value)
            elif isinstance(value, dict):
                self.hashes[kind, name] = _texts(value)
            elif value and isinstance(value[0][1], dict):
                self.streams[kind, name] = value
            elif value:
                self.zsets[kind, name] = {member.decode(): score for member, score in value}
        self.now = tuple(int(self.run[name]) for name in ("version", "head", "event"))
        self.oldest = int(self.run["oldest"])

    def of(self, kind: str) -> dict[str, dict[str, str]]:
        """Hashes of one kind, e.g. entry, by name; not their `:entries`."""
        return {name: h for (k, name), h in self.hashes.items() if k == kind}

    def members(self, buffer: int) -> list[str]:
        """In order."""
        return list(self.zset("buffer", f"{buffer}:entries"))

    def zset(self, kind: str, name: str = "") -> dict[str, float]:
        return self.zsets.get((kind, name), {})

    def reserved(self) -> dict[str, int]:
        """entry -> deadline, the most urgent first."""
        return {entry: int(score) >> 32 for entry, score in self.zset("reserved").items()}

    def payloads(self) -> set[tuple[str, str, str]]:
        """(stream, id, the entry that it says it belongs to)"""
        return {
            (name, identity.decode(), fields[b"entry"].decode())
            for (kind, name), rows in self.streams.items()
            if kind == "trajectories"
            for identity, fields in rows
        }


def check(found: Contents, rules: Settings, before: tuple[int, int, int]) -> None:
    """before: (version, head, event) of the last look at the same ledger."""
    version, head, _ = found.now
    assert all(b <= a for b, a in zip(before, found.now, strict=True)), f"monotone: {before}, then {found.now}"
    assert version <= head <= version + rules.publish_every, "order"

    reserved, entries = found.reserved(), found.of("entry")
    window = range(head, version + rules.max_staleness + 1)
    assert all(deadline in window for deadline in reserved.values()), "bound: someone in flight can be trained nowhere"
    slack = 0
    members = {b: found.members(b) for b in range(found.oldest, window.stop)}
    for b, inside in members.items():
        assert len(inside) <= rules.batch_size, f"capacity of {b}"
        assert b >= head or len(inside) == rules.batch_size, f"capacity of the consumed batch {b}"
        for entry in inside:
            assert b - int(entries[entry]["version"]) <= rules.max_staleness, f"bound of {entry} in {b}"
            assert entries[entry]["state"] == ("OCCUPIED" if b >= head else "CONSUMED"), f"conservation of {entry}"
        if b in window:
            room = rules.buffer_capacity - len(inside) if len(inside) < rules.batch_size else 0
            slack = max(slack, 0) + room - list(reserved.values()).count(b)
            assert slack >= 0 or rules.buffer_capacity > rules.batch_size, f"soundness of {b}"

    placed = [entry for inside in members.values() for entry in inside]
    assert len(placed) == len(set(placed)), "once"
    assert {key[1] for key in found.zsets if key[0] == "buffer"} == {f"{b}:entries" for b, m in members.items() if m}, (
        "conservation: a buffer outside of what is kept"
    )
    states = {entry: fields["state"] for entry, fields in entries.items()}
    assert {e for e, state in states.items() if state in IN_A_BUFFER} == set(placed), "conservation"
    assert {e for e, state in states.items() if state == "RESERVED"} == reserved.keys(), "conservation"
    assert set(states.values()) <= IN_A_BUFFER | TOMBSTONES | {"RESERVED"}, "conservation"
    prompts = [*found.zset("prompts"), *found.zset("quarantined"), *(entries[e]["prompt"] for e in reserved)]
    assert sorted(prompts) == sorted(found.of("prompt")), "conservation of prompts"
    held = [e for (kind, name), z in found.zsets.items() if kind == "worker" and name.endswith(":entries") for e in z]
    assert sorted(held) == sorted(reserved), "conservation: each in flight is held by one worker"

    owned = {(entries[e]["worker"], i, e) for e in placed for i in entries[e]["ids"].split()}
    assert found.payloads() == owned, "payload"
    assert len(owned) == rules.group_size * len(placed) == int(found.run["stored"]), "payload"


def _texts(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {k.decode(): v.decode() for k, v in fields.items()}
