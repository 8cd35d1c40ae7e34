"""Out of memory, turned into what to set: which setting, by how much, with the numbers of this run.

    torch.OutOfMemoryError  (a GPU)    ┐
    its CPU allocator, MemoryError     ┘─▶ TrainingFailed: what did not fit, what there was, settings, cheapest first

None of the settings changes what is trained, beyond the rounding of sums; so the run goes on with them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pipeline.config import Config
from trainer.batch import TrainingFailed
from trainer.packing import MicroBatch
from trainer.throughput import GIB, peak_memory_gib

ALLOCATOR = "DefaultCPUAllocator"  # torch's; it raises a RuntimeError
OTHERS_GIB = 1.0  # of a GPU, from which it is worth saying that other processes hold it
LOOSE = 0.1  # share of what torch holds of a GPU, from which it is in pieces


@contextmanager
def advising(doing: str, config: Config, device: torch.device, micro: MicroBatch | None = None) -> Iterator[None]:
    """doing: what may not fit, such as "the optimizer's step"; micro: or this micro-batch."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        raise TrainingFailed(sentence(doing, config, device, micro, str(error))) from None


def ran_out(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or ALLOCATOR in str(error)


def sentence(doing: str, config: Config, device: torch.device, micro: MicroBatch | None, said: str) -> str:
    if micro is not None:
        rows, width = micro.tokens.shape
        doing = f"{doing} of {rows} × {width} tokens ({len(micro.members)} trajectories, {len(micro.targets)} actions)"
    told, *_ = said.strip().splitlines() or ["no memory"]
    return (
        f"out of memory in {doing}: {told} There: {there(device)}. What makes room, cheapest first: "
        f"{'; '.join(remedies(config, device, micro))}. Then start the run again: it goes on from its newest checkpoint"
    )


def there(device: torch.device) -> str:
    """What of the device's memory is taken, by whom."""
    peak = f"peak of this rank {peak_memory_gib(device):.1f} GiB"
    if device.type != "cuda":
        return peak
    free, total = torch.cuda.mem_get_info(device)
    return (
        f"{peak}, {free / GIB:.1f} of {total / GIB:.1f} GiB free, {_others(device) / GIB:.1f} held by other processes"
    )


def remedies(config: Config, device: torch.device, micro: MicroBatch | None) -> Iterator[str]:
    """Settings that would make room, with their new values."""
    trainer, gpu = config.trainer, device.type == "cuda"
    if gpu and torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) > LOOSE * _total(device):
        yield "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment: what torch holds is in pieces"
    if micro is not None:
        if (half := max(micro.tokens.numel() // 2, config.rollout.context_length)) < trainer.token_budget:
            yield f"trainer.token_budget = {half} (now {trainer.token_budget})"
        if not trainer.activation_checkpointing:
            yield "trainer.activation_checkpointing = true"
    if gpu and _others(device) > OTHERS_GIB * GIB:
        yield 'engines.args = ["--mem-fraction-static", "0.4"], where engines share this GPU, or a GPU of its own'
    if gpu and trainer.gather_every == "step":
        yield 'trainer.gather_every = "micro_batch": 6 bytes a parameter less'
    if gpu and not trainer.offload:
        yield "trainer.offload = true"
    if trainer.replicas > 1:
        yield f"trainer.replicas = {trainer.replicas // 2} (now {trainer.replicas})"
    ranks = 2 * trainer.ranks
    more = f", {'trainer.gpus' if gpu else 'on more machines'}"
    yield f"trainer.ranks = {ranks}{more}: each holds half of the 16 bytes a parameter that it holds now"
    if micro is not None and config.rollout.context_length >= trainer.token_budget:
        yield f"a new run with rollout.context_length below {config.rollout.context_length}, which one budget must hold"


def _others(device: torch.device) -> int:
    free, total = torch.cuda.mem_get_info(device)
    return max(0, total - free - torch.cuda.memory_reserved(device))


def _total(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[1]
