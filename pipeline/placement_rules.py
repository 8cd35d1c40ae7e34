"""Which GPU is whose: what engines and trainer cannot have, and how ranks can be laid out.

one node of 8        engines.gpus = [0, 1, 2, 3]  (count × tp)      trainer.gpus = [4, 5, 6, 7]  (one rank each)
one GPU for both     engines.gpus = [0]   trainer.gpus = [0]   trainer.share_gpus = true
two nodes of 8       trainer.gpus = [0 … 7]  of each   nodes = 2   ranks = 16   replicas = 2: 2 copies × 8 shards
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.config import Engines, Trainer

LIMIT = "--mem-fraction-static"  # SGLang's; by default it takes nearly all of a GPU


def impossible_placement(engines: "Engines", trainer: "Trainer") -> Iterator[str]:
    """One sentence for each contradiction, with the way out."""
    yield from _impossible_sharing(engines, trainer)
    for name, gpus in {"engines": engines.gpus, "trainer": trainer.gpus}.items():
        if len(set(gpus)) < len(gpus):
            yield f"{name}.gpus = {gpus} names a GPU twice"
    if engines.device == "cuda" and not engines.urls and len(engines.gpus) != engines.count * engines.tp:
        yield (
            f"engines.gpus lists {len(engines.gpus)} GPUs, but engines.count × engines.tp = "
            f"{engines.count * engines.tp} are needed; list as many, or change count or tp"
        )
    if engines.device == "cpu" and engines.gpus:
        yield f'engines.gpus = {engines.gpus}, but engines.device = "cpu"; set it to "cuda"'
    yield from _impossible_ranks(trainer)


def _impossible_sharing(engines: "Engines", trainer: "Trainer") -> Iterator[str]:
    both = sorted(set(engines.gpus) & set(trainer.gpus))
    if both and not trainer.share_gpus:
        yield (
            f"GPUs {both} are given to both engines and trainer; give each its own, or set trainer.share_gpus = true "
            f'and limit SGLang, for example engines.args = ["{LIMIT}", "0.4"]'
        )
    if both and trainer.share_gpus and not any(argument.split("=")[0] == LIMIT for argument in engines.args):
        yield (
            f"GPUs {both} are shared, but SGLang would take nearly all of their memory; limit it, for example "
            f'engines.args = ["{LIMIT}", "0.4"]'
        )


def _impossible_ranks(trainer: "Trainer") -> Iterator[str]:
    ranks, nodes, replicas = trainer.ranks, trainer.nodes, trainer.replicas
    if nodes > 1 and trainer.rendezvous is None:
        yield (
            f'trainer.nodes = {nodes} machines must meet somewhere: set trainer.rendezvous = "HOST:PORT", the first '
            "one's address and a port that is free there"
        )
    if ranks % nodes:
        yield (
            f"trainer.ranks = {ranks} cannot be spread evenly over trainer.nodes = {nodes}; ranks count on all nodes "
            f"together: set it to {nodes * max(1, ranks // nodes)}"
        )
    elif trainer.gpus and len(trainer.gpus) * nodes != ranks:
        on_each = f" on each of {nodes} nodes" if nodes > 1 else ""
        yield (
            f"trainer.gpus lists {len(trainer.gpus)} GPUs{on_each} for trainer.ranks = {ranks}; a GPU has one rank: "
            f"set ranks to {len(trainer.gpus) * nodes}, or list {ranks // nodes} GPUs"
        )
    if ranks % replicas:
        yield (
            f"trainer.replicas = {replicas}: trainer.ranks = {ranks} do not make so many copies of equally many "
            "shards; replicas must divide ranks, and is usually the number of nodes"
        )
