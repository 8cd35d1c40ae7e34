"""The whole tensors of a sharded model, without any rank ever holding more than a piece of one beyond its shard.

    rank 0 │ rows 0-3 │      ─ broadcast ─▶  0-1, 2-3, 4-5, 6-7   the same pieces in this order on every rank
    rank 1 │ rows 4-7 │                      in the published dtype, into which each rank converts its own

FSDP2 cuts tensors by their rows, so pieces in the order of ranks are the bytes of a file in their order.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from pipeline.errors import HeadraceError
from trainer.ranks import own_part


class GatherError(HeadraceError):
    """A tensor that lies on the ranks in a way which nobody can gather."""

    code = "GATHER"


@torch.no_grad()
def pieces(tensor: torch.Tensor, dtype: torch.dtype, device: torch.device, limit: int) -> Iterator[torch.Tensor]:
    """The rows of `tensor`, at most `limit` bytes of them at a time (one row at least), as `dtype` on `device`.

    Every rank must take every piece. One may be a view of the model's own memory: it is to be used up before the next
    update.
    """
    shape = tensor.shape or (1,)
    rows = max(1, limit // (dtype.itemsize * max(1, shape[1:].numel() if len(shape) > 1 else 1)))
    own = own_part(tensor).detach()
    for owner, count in _owners(tensor, shape[0]):
        here = owner is None or owner == dist.get_rank()
        for start in range(0, count, rows):
            stop = min(start + rows, count)
            if here:
                piece = own.reshape(-1, *shape[1:])[start:stop].to(device, dtype).contiguous()
            else:
                piece = torch.empty((stop - start, *shape[1:]), dtype=dtype, device=device)
            if owner is not None:
                dist.broadcast(piece, src=owner)
            yield piece


def _owners(tensor: torch.Tensor, rows: int) -> list[tuple[int | None, int]]:
    """(rank, how many rows it has), in the order of the rows; no rank: this one has them, and so has any other."""
    if not isinstance(tensor, DTensor):
        return [(None, rows)]
    ranks = tensor.device_mesh.mesh
    for dimension, placement in reversed(list(enumerate(tensor.placements))):
        if placement.is_replicate():
            ranks = ranks.select(dimension, 0)
        elif not placement.is_shard(0):
            raise GatherError(f"a tensor is placed {tensor.placements}: expected its rows to be sharded by FSDP2")
    if ranks.ndim > 1:
        raise GatherError(f"a tensor is placed {tensor.placements}: expected one sharded dimension of the mesh")
    owners = ranks.reshape(-1).tolist()
    if dist.get_world_size() == 1:
        return [(None, rows)]
    share = -(-rows // len(owners))
    return [(owner, max(0, min(share, rows - i * share))) for i, owner in enumerate(owners)]
