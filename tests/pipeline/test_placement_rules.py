"""Which GPU is whose: layouts that people have, and those that cannot be."""

import pytest

from pipeline.config_sections import Engines
from pipeline.config_training import Trainer
from pipeline.placement_rules import impossible_placement

LIMITED = ["--mem-fraction-static", "0.4"]
EIGHT = list(range(8))
LAYOUTS = {
    "no GPU": ({}, {}),
    "no GPU, two ranks": ({}, {"ranks": 2}),
    "one GPU for both": ({"gpus": [0], "args": LIMITED}, {"gpus": [0], "share_gpus": True}),
    "one GPU, engines elsewhere": ({"urls": ["http://elsewhere"], "device": "cpu"}, {"gpus": [0]}),
    "two GPUs": ({"gpus": [0]}, {"gpus": [1]}),
    "eight, half of them for one engine": (
        {"gpus": EIGHT[:4], "tp": 4},
        {"gpus": EIGHT[4:], "ranks": 4},
    ),
    "eight, six engines": ({"gpus": EIGHT[:6], "count": 6}, {"gpus": [6, 7], "ranks": 2}),
    "two nodes of eight for the trainer": (
        {"urls": ["http://elsewhere"], "device": "cpu"},
        {"gpus": EIGHT, "ranks": 16, "nodes": 2, "replicas": 2, "rendezvous": "node-0:29500"},
    ),
}
IMPOSSIBLE = [
    ({"gpus": [0]}, {"gpus": [0]}, "GPUs [0] are given to both engines and trainer; give each its own, or set"),
    ({"gpus": [0]}, {"gpus": [0], "share_gpus": True}, "limit it, for example engines.args = "),
    ({"gpus": [0, 1], "tp": 4}, {}, "engines.gpus lists 2 GPUs, but engines.count × engines.tp = 4 are needed; list"),
    ({"device": "cpu", "gpus": [0]}, {}, 'engines.device = "cpu"; set it to "cuda"'),
    ({"gpus": [0]}, {"gpus": [1, 1], "ranks": 2}, "trainer.gpus = [1, 1] names a GPU twice"),
    ({"gpus": [0]}, {"gpus": [1], "ranks": 2}, "for trainer.ranks = 2; a GPU has one rank: set ranks to 1, or list 2"),
    (
        {"gpus": [0]},
        {"gpus": [1, 2], "ranks": 2, "nodes": 2, "rendezvous": "a:1"},
        "2 GPUs on each of 2 nodes for trainer.ranks = 2; a GPU has one rank: set ranks to 4, or list 1",
    ),
    ({"gpus": [0]}, {"ranks": 3, "nodes": 2, "rendezvous": "a:1"}, "cannot be spread evenly over trainer.nodes = 2"),
    ({"gpus": [0]}, {"ranks": 2, "nodes": 2}, 'set trainer.rendezvous = "HOST:PORT"'),
    ({"gpus": [0]}, {"ranks": 4, "replicas": 3}, "trainer.replicas = 3: trainer.ranks = 4 do not make so many copies"),
]


def problems(engines, trainer):
    device = {"device": "cuda"} if engines else {}
    return list(impossible_placement(Engines(**device | engines), Trainer(**trainer)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_that_people_have_is_possible(layout):
    assert problems(*LAYOUTS[layout]) == []


@pytest.mark.parametrize(("engines", "trainer", "said"), IMPOSSIBLE)
def test_a_layout_that_cannot_be_is_refused_with_the_way_out(engines, trainer, said):
    (problem,) = problems(engines, trainer)
    assert said in problem


def test_a_meeting_place_without_a_port_is_refused():
    with pytest.raises(ValueError, match="rendezvous"):
        Trainer(nodes=2, ranks=2, rendezvous="node-0")
