"""A run's keys as commands that make them again, in any Redis: what one server's DUMP says, another's may refuse.

    cut ─▶ hash HSET · zset ZADD · list RPUSH · what expires PEXPIREAT    one moment of the run: lua/copy.lua, in MULTI
        └▶ streams, up to the last id of that moment ─▶ XADD … XSETID      read afterwards, a few entries at a time

Entries of a stream never change. Those of trajectories must all be there; of events and metrics the oldest may have
been trimmed meanwhile, as they would have been soon. Left out is what only concerns processes that run: where they
are, and the weights that are being sent.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import redis

from pipeline import keys
from pipeline.errors import HeadraceError, LedgerError
from pipeline.scripts import Scripts

Command = list[Any]
AT_ONCE = 16  # entries of a stream, each of buffers.max_trajectory_bytes at most
ITEMS = 1000  # of a command
SENT_BYTES = 1 << 23  # to Redis, before its answers are waited for
WRITES = {b"HSET", b"ZADD", b"RPUSH", b"XADD", b"XDEL", b"XSETID", b"PEXPIREAT"}


class Moved(HeadraceError):
    """The run has gone on while it was read: what was to be read is not there any more, or not alone."""

    code = "MOVED"


class Stream(NamedTuple):
    key: bytes
    length: int
    last: bytes  # id that was ever given
    added: int
    deleted: bytes  # the greatest id that was ever deleted


class Cut(NamedTuple):
    """A run at one moment. fields: of hr:{run}; versions: of hr:{run}:versions."""

    fields: dict[str, str]
    versions: dict[int, bytes]
    commands: list[Command]
    streams: list[Stream]


def cut(client: redis.Redis, run: str) -> Cut:
    """Of a run that is there. By a user who may run scripts of the ledger: docker/users.acl has the coordinator."""
    prompts = list(dict.fromkeys(client.scan_iter(f"{keys.prompt(run, '')}*", count=ITEMS)))
    read = [("HGETALL", key) for key in prompts]
    answers, (count, found) = Scripts(client).run_after(read, "copy", [keys.run(run)], [])
    if count != len(prompts):
        raise Moved("prompts were added meanwhile")
    fields, versions, commands, streams = {}, {}, [], []
    for key, told in zip(prompts, answers, strict=True):
        commands += _commands(key, b"hash", [item for pair in told.items() for item in pair])
    passing = tuple(key.encode() for key in (f"{keys.run(run)}:process", keys.transfers(run)[:-1]))
    for key, kind, expires, contents in found:
        if key.startswith(passing):
            continue
        if kind == b"stream":
            streams.append(_stream(key, contents))
            continue
        commands += _commands(key, kind, contents)
        if expires >= 0:
            commands.append([b"PEXPIREAT", key, expires])
        if key == keys.run(run).encode():
            fields = {name.decode(): value.decode(errors="replace") for name, value in _pairs(contents)}
        if key == keys.versions(run).encode():
            versions = {int(version): record for version, record in _pairs(contents)}
    return Cut(fields, versions, commands, streams)


def entries(client: redis.Redis, stream: Stream, whole: bool) -> Iterator[Command]:
    """The stream as it was in the cut. Raises Moved if it shall be whole and is not."""
    after, count = b"-", 0
    while rows := client.xrange(stream.key, after, stream.last, count=AT_ONCE):
        for id, fields in rows:
            yield [b"XADD", stream.key, id, *(item for pair in fields.items() for item in pair)]
        after, count = b"(" + rows[-1][0], count + len(rows)
    if whole and count < stream.length:
        raise Moved(f"{stream.length - count} trajectories were deleted while they were read")
    if not count:  # one without entries remembers its last id all the same
        yield [b"XADD", stream.key, stream.last, b"", b""]
        yield [b"XDEL", stream.key, stream.last]
    yield [b"XSETID", stream.key, stream.last, b"ENTRIESADDED", stream.added, b"MAXDELETEDID", stream.deleted]


def make(client: redis.Redis, run: str, commands: Iterable[Command]) -> None:
    """Have Redis execute them; each must be one that makes a key of this run. Raises what redis-py raises."""
    waiting, size = [], 0
    for command in commands:
        _check(run, command)
        waiting.append(command)
        size += sum(len(item) if isinstance(item, bytes) else 8 for item in command)
        if size >= SENT_BYTES:
            _send(client, waiting)
            waiting, size = [], 0
    _send(client, waiting)


def forget(client: redis.Redis, run: str) -> None:
    """Delete all keys of the run."""
    names = list(client.scan_iter(f"{keys.run(run)}*", count=ITEMS))
    for start in range(0, len(names), ITEMS):
        client.delete(*names[start : start + ITEMS])


def _commands(key: bytes, kind: bytes, contents: list[bytes]) -> Iterator[Command]:
    if kind == b"zset":
        contents = [item for member, score in _pairs(contents) for item in (score, member)]
    names = {b"hash": b"HSET", b"zset": b"ZADD", b"list": b"RPUSH"}
    if kind not in names:
        raise LedgerError(f"{key.decode()}: a {kind.decode()} is nothing that headrace keeps; delete this key")
    for start in range(0, len(contents), 2 * ITEMS):
        yield [names[kind], key, *contents[start : start + 2 * ITEMS]]


def _stream(key: bytes, contents: list[Any]) -> Stream:
    told = dict(_pairs(contents))
    last, deleted = told[b"last-generated-id"], told[b"max-deleted-entry-id"]
    return Stream(key, told[b"length"], last, told[b"entries-added"], deleted)


def _pairs(flat: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _check(run: str, command: Command) -> None:
    """A file that others may have made must not write anywhere else."""
    own = keys.run(run).encode()
    if command[0] not in WRITES or not (command[1] == own or command[1].startswith(own + b":")):
        raise LedgerError(f"expected keys of the run {run!r} alone, found {command[0]!r} of {command[1]!r}")


def _send(client: redis.Redis, commands: list[Command]) -> None:
    with client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(command[0].decode(), *command[1:])
        pipe.execute()
