"""The trainer's program on a bad disk: `stuck_disk.py N RUN.toml …` writes N checkpoints, the next one never gets its
name; `stuck_disk.py full RUN.toml …` has no room for rank 1's shards, `stuck_disk.py alone RUN.toml …` cuts rank 1 off
once they are written."""

import os
import resource
import sys
import threading

import torch.distributed.checkpoint as dcp

from trainer.__main__ import main


def stick_after(count):
    save = dcp.save

    def stuck(*arguments, **options):
        nonlocal count
        save(*arguments, **options)
        count -= 1
        if count < 0:
            threading.Event().wait()

    dcp.save = stuck


def cut_off():
    save = dcp.save

    def alone(*arguments, **options):
        save(*arguments, **options)
        raise RuntimeError

    dcp.save = alone


if __name__ == "__main__":
    how = sys.argv.pop(1)
    if how.isdecimal():
        stick_after(int(how))
    elif os.environ["RANK"] == "1" and how == "alone":
        cut_off()
    elif os.environ["RANK"] == "1":
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    main()
