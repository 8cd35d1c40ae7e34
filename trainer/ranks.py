"""Who else trains: one process per GPU over NCCL, or one or two on a CPU over gloo, with the same code.

`torchrun --nproc-per-node N -m trainer RUN.toml` starts them; a lone `python -m trainer RUN.toml` is rank 0 of 1.
"""

import os
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import redis
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from pipeline.config import Trainer
from pipeline.errors import ConfigError, HeadraceError


@dataclass(frozen=True)
class Ranks:
    """This process's place among all.

    mesh   FSDP2 shards over its last dimension, and has whole copies along the first if there are two; None: nothing is
           sharded
    """

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh | None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank, in the order of ranks."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

    def on_first(self, call: Callable[[], Any]) -> Any:
        """What `call` returns, or raises, on rank 0: on every rank, once rank 0 is done with it."""
        answer = error = None
        if self.first:
            try:
                answer = call()
            except (HeadraceError, redis.RedisError, OSError) as raised:
                error = raised
        answer, error = self.broadcast((answer, error))
        if error is not None:
            raise error
        return answer

    def on_each(self, call: Callable[[], Any]) -> Any:
        """What `call` returns on this rank, once every rank is done with it; the error of one is every rank's."""
        answer = error = None
        try:
            answer = call()
        except (HeadraceError, redis.RedisError, OSError) as raised:
            error = raised
        if raised := next(filter(None, self.gather(error)), None):
            raise raised
        return answer


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a sharded tensor; all of one that is not sharded. A view of the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


ALONE = Ranks(0, 1, torch.device("cpu"), None)


def device_of(settings: Trainer, local: int = 0) -> torch.device:
    """Where this rank computes; local: its number on this machine. Raises ConfigError if its GPU is not there."""
    if not settings.gpus:
        return torch.device("cpu")
    # The launcher shows this process only the trainer's GPUs, so they are numbered by local rank.
    if local >= (found := torch.cuda.device_count()):
        raise ConfigError(
            f"trainer.gpus = {settings.gpus}, but this process sees {found} CUDA GPUs: see CUDA_VISIBLE_DEVICES and "
            "whether torch was built for CUDA, or set trainer.gpus = [] to train on the CPU"
        )
    return torch.device("cuda", local)


@contextmanager
def joined(settings: Trainer):
    """Join the process group that torchrun described (or start one of size 1) and leave it at the end."""
    torch.set_num_threads(settings.threads)
    if "RANK" in os.environ:
        rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        store = None
    else:
        rank, size, local = 0, 1, 0
        store = dist.HashStore()
    device, backend = device_of(settings, local), "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    # Rank 0 waits for a buffer while the others wait for rank 0: their patience must be the longer one.
    patience = timedelta(seconds=settings.wait_timeout_s + 300)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        dist.init_process_group(backend, rank=rank, world_size=size, store=store, timeout=patience)
    try:
        yield Ranks(rank, size, device, mesh_of(device.type, size, settings.replicas))
        dist.barrier()  # a rank that leaves first closes sockets which the others may still read
    finally:
        dist.destroy_process_group()


def mesh_of(device: str, size: int, replicas: int) -> DeviceMesh:
    """Ranks that follow one another, which are those of one node, share one copy of the model."""
    if replicas == 1:
        return init_device_mesh(device, (size,))
    return init_device_mesh(device, (replicas, size // replicas), mesh_dim_names=("replicas", "shards"))
