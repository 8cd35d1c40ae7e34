"""Weights that reach an engine over the network instead of a shared disk: the coordinator asks, the trainer sends.

    coordinator, once the engine stands still ─ ask ─▶ hr:{run}:transfers ─ take ─▶ the trainer's rank 0
         ◀─ TransferFailed: then it is loaded from disk ─ hr:{run}:transfer:<id> ◀─ answer ─ taken … done │ why not

The trainer alone speaks to the engine meanwhile (trainer/broadcast.py). One that is not there, or does not take a
request within 5 s, is not waited for.
"""

import json
import time
import uuid
from typing import NamedTuple

from redis import Redis

from pipeline import events, keys
from pipeline.errors import HeadraceError

TAKE_S = 5.0
MARGIN_S = 5.0  # the trainer ends a transfer that takes too long, before the coordinator despairs of it
TAKEN, DONE = "taken", "done"


class TransferFailed(HeadraceError):
    """The engine did not get the weights; what it serves now is not known."""

    code = "TRANSFER"


class Transfer(NamedTuple):
    """path: of the weights, in the run's folder; timeout_s: of the whole of it, once it is taken."""

    id: str
    url: str
    path: str
    label: str
    timeout_s: float


def ask(client: Redis, run: str, url: str, path: str, label: str, timeout_s: float) -> None:
    """Have the trainer send the weights in `path` to the engine at `url`. Raises TransferFailed."""
    transfer = Transfer(uuid.uuid4().hex, url, path, label, timeout_s)
    line, asked = json.dumps(transfer), time.monotonic()
    client.rpush(keys.transfers(run), line)
    said = _hear(client, run, transfer, asked + TAKE_S)
    if said is None and client.lrem(keys.transfers(run), 1, line):
        raise TransferFailed(f"no trainer took it within {TAKE_S:g} s")
    end = time.monotonic() + timeout_s + MARGIN_S
    while said in (None, TAKEN):
        if time.monotonic() > end:
            raise TransferFailed(f"it was not done within {timeout_s:g} s")
        said = _hear(client, run, transfer, end)
    if said != DONE:
        raise TransferFailed(said)


def take(client: Redis, run: str) -> Transfer | None:
    """The next one that is asked for; None if there is none for a second."""
    found = client.blpop([keys.transfers(run)], timeout=events.BLOCK_S)
    if found is None:
        return None
    transfer = Transfer(*json.loads(found[1]))
    answer(client, run, transfer, TAKEN)
    return transfer


def answer(client: Redis, run: str, transfer: Transfer, text: str) -> None:
    """DONE, or why not."""
    key = keys.transfer(run, transfer.id)
    with client.pipeline() as pipe:
        pipe.rpush(key, text)
        pipe.expire(key, int(transfer.timeout_s + MARGIN_S) + 60)
        pipe.execute()


def _hear(client: Redis, run: str, transfer: Transfer, end: float) -> str | None:
    """The next answer; None if there is none until `end`."""
    while (left := end - time.monotonic()) > 0:
        if found := client.blpop([keys.transfer(run, transfer.id)], timeout=min(left, events.BLOCK_S)):
            return found[1].decode()
    return None
