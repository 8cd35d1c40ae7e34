"""The trainer's ranks as processes that begin in a moment: forked from one that has imported everything.

    with started(config, redis_url, kill_at("rename", 2)) as ranks:   each runs `python -m trainer`, after `mishap`
        ended(ranks)                                                    [(what it wrote to stderr, exit code), …]

A mishap is a function of the module level, or `functools.partial` of one, called in each rank before it trains.
"""

import contextlib
import functools
import multiprocessing
import os
import resource
import signal
import sys
import threading
from pathlib import Path

import torch.distributed.checkpoint as dcp

from pipeline import ports
from pipeline.coordinator import Coordinator
from trainer import checkpoint
from trainer.__main__ import main

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["trainer.broadcast", "trainer.loop", __name__])


@contextlib.contextmanager
def started(config, redis_url, mishap=None):
    """Killed at the end."""
    size, port = config.trainer.ranks, ports.free()[0]
    run_toml = str(config.folder / "run.toml")
    ranks = []
    for rank in range(size):
        log = config.folder / f"stderr-{rank}"
        log.unlink(missing_ok=True)
        arguments = (rank, size, port, ["trainer", run_toml, "--redis", redis_url], log, mishap)
        ranks.append((CONTEXT.Process(target=_train, args=arguments, daemon=True), log))
    try:
        for process, _ in ranks:
            process.start()
        yield ranks
    finally:
        for process, _ in ranks:
            process.kill()
            process.join()


def ended(ranks):
    """What each rank wrote, and its exit code."""
    for process, _ in ranks:
        process.join(100)
    return [(log.read_text(), process.exitcode) for process, log in ranks]


def _train(rank: int, size: int, port: int, argv: list[str], log: Path, mishap):
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
    os.environ |= {"WORLD_SIZE": str(size), "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sys.argv = argv
    if mishap is not None:
        mishap(rank)
    main()


# -- mishaps


def stuck_after(count, rank):
    """So many checkpoints are written, the next one never gets its name."""
    save = dcp.save

    def stuck(*arguments, **options):
        nonlocal count
        save(*arguments, **options)
        count -= 1
        if count < 0:
            threading.Event().wait()

    dcp.save = stuck


def full(rank):
    """No room for the shards of rank 1."""
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))


def alone(rank):
    """Rank 1 is cut off once its shards are written."""
    save = dcp.save

    def cut_off(*arguments, **options):
        save(*arguments, **options)
        raise RuntimeError

    if rank == 1:
        dcp.save = cut_off


def kill_at(moment, version):
    """kill -9 of rank 0 with checkpoint or publication `version`: "stage", "write", "rename", "named", "publish", or
    "credit" of its last update. Whoever started the others ends them too, as torchrun does."""
    return functools.partial(_kill_at, moment, version)


def _kill_at(moment, version, rank):
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def dies(call, when, before=False):
        """`call`, in or after which the process ends when `when` says so of its arguments."""

        @functools.wraps(call)
        def deadly(*arguments, **options):
            if before and when(*arguments, **options):
                die()
            answer = call(*arguments, **options)
            if when(*arguments, **options):
                die()
            return answer

        return deadly

    def is_draft(folder, **_):
        return folder.name.startswith(f".{version}-")

    if rank:
        return
    if moment == "stage":
        Writer = checkpoint.Writer
        Writer._draft = dies(Writer._draft, lambda _, drafted: drafted == version)
    elif moment == "write":
        checkpoint.dcp.save = dies(dcp.save, lambda _, checkpoint_id, **__: is_draft(checkpoint_id))
    elif moment == "rename":
        checkpoint.sync = dies(checkpoint.sync, is_draft)
    elif moment == "named":
        retain = checkpoint.checkpoint_folder.retain
        named = dies(retain, lambda folder, _: (folder / str(version)).exists(), before=True)
        checkpoint.checkpoint_folder.retain = named
    elif moment == "publish":
        Coordinator.publish = dies(Coordinator.publish, lambda _, __, published, *___: published == version)
    elif moment == "credit":
        Coordinator.credit = dies(Coordinator.credit, lambda _, __, credited, ___: credited == version - 1)
    else:
        raise ValueError(moment)
