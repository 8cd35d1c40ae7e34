"""The loss against numbers that public code computed on the same three trajectories.

volcengine/verl b178a3cd56f58b2d502255daba591e92833930a7: compute_policy_loss_vanilla, compute_policy_loss_gspo,
kl_penalty, compute_rollout_correction_weights, compute_rollout_rejection_mask. huggingface/trl
f2cd57710ae345ea6428ae95363267fcf38a3dc8: GRPOTrainer._compute_loss. Run in float64; gradients are by the log-prob of
each token of the mask, in its order. verl adds 1e-8 to the tokens of a trajectory, hence the tolerance.
"""

import math
from itertools import chain

import pytest
import torch

from pipeline.config import Loss
from trainer.loss import policy_loss
from trainer.rejection import rejected


def table(*rows):
    return torch.tensor(rows, dtype=torch.float64)


MASK = table([1, 1, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1])
LOGPROBS = table(
    [-1.0, -0.5, -2.0, -0.1, -1.5, -0.3], [-0.7, -1.2, -0.4, -2.2, -0.9, -1.1], [-0.2, -0.6, -1.4, -0.8, -0.5, -1.9]
)
PROXIMAL = table(
    [-1.3, -0.4, -1.2, -0.1, -1.9, -0.3], [-0.6, -1.9, -0.4, -1.6, -0.9, -1.0], [-0.2, -0.9, -1.1, -1.3, -0.5, -1.9]
)
ROLLOUT = table(
    [-1.1, -1.4, -1.2, -0.3, -1.6, -0.3], [-0.9, -1.5, -0.3, -1.7, -2.1, -1.0], [-0.4, -0.8, -1.1, -1.2, -0.7, -1.7]
)
REFERENCE = table(
    [-1.2, -0.5, -1.6, -0.2, -1.5, -0.4], [-0.8, -1.4, -0.4, -1.9, -1.0, -1.1], [-0.2, -0.9, -1.3, -0.8, -0.6, -1.5]
)
ENTROPY = table([1.2, 0.4, 0.9, 0.2, 1.1, 0.5], [0.6, 0.8, 0.3, 1.3, 0.7, 1.0], [0.1, 0.5, 0.9, 0.6, 0.4, 1.4])
ADVANTAGES = table([1.5], [-0.8], [-2.0])

PUBLIC = {
    "verl: PPO, Dual-Clip 1.5, token TIS at 1.5": (
        {"dual_clip": 1.5, "importance_cap": 1.5},
        0.6286253989363693,
        [
            [0, -0.185080381, -0.0612721315, 0],
            [0.0888292915, 0],
            [0.2220732288, 0, 0, 0.2220732288, 0.1488601369],
        ],
    ),
    "verl: mean of means, sequence TIS at 1.5": (
        {"dual_clip": 1.5, "importance": "sequence", "importance_cap": 1.5, "aggregation": "sequence"},
        0.1729871406892484,
        [
            [0, -0.1696570155, -0.0842491806, 0],
            [0.1091640999, 0],
            [0.1473561221, 0, 0, 0.1091641002, 0.1091641002],
        ],
    ),
    "verl: GSPO": (
        {"ratio": "sequence", "aggregation": "sequence", "dual_clip": math.inf, "importance": "none"},
        0.6211282464026728,
        [
            [-0.1189036778, -0.1189036778, -0.1189036778, -0.1189036778],
            [0.1799811734, 0.1799811734],
            [0.1473561221, 0.1473561221, 0.1473561221, 0.1473561221, 0.1473561221],
        ],
    ),
    "trl: GSPO": (
        {"ratio": "sequence", "aggregation": "sequence", "dual_clip": math.inf, "importance": "none"},
        0.621128248487009,
        [
            [-0.1189036781, -0.1189036781, -0.1189036781, -0.1189036781],
            [0.1799811743, 0.1799811743],
            [0.1473561224, 0.1473561224, 0.1473561224, 0.1473561224, 0.1473561224],
        ],
    ),
    "trl: GRPO, KL": (
        {"aggregation": "sequence", "dual_clip": math.inf, "importance": "none", "kl": 0.04},
        0.6739246053901775,
        [
            [0.0006042308, -0.1131046773, -0.0578055362, 0],
            [0.1212794063, 0.2697088226],
            [0.1806723258, -0.0002804558, 0.2198295028, 0.1335871002, 0.1320218008],
        ],
    ),
    "trl: Dr. GRPO": (
        {"aggregation": "constant", "dual_clip": math.inf, "importance": "none"},
        0.4478212602070912,
        [
            [0, -0.0754031182, -0.0374440803, 0],
            [0.0402149964, 0.0895001203],
            [0.149984312, 0, 0.1831912523, 0.1111111111, 0.1111111111],
        ],
    ),
    "trl: DAPO's token mean, KL, entropy": (
        {"dual_clip": math.inf, "importance": "none", "kl": 0.04, "entropy": 0.01},
        0.725804879888941,
        [
            [0.0006591609, -0.1233869206, -0.0630605849, 0],
            [0.0661524034, 0.1471139033],
            [0.2463713533, -0.0003824397, 0.2997675038, 0.1821642276, 0.1800297284],
        ],
    ),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_loss_and_gradient_are_those_of_public_code(name):
    settings, expected, gradient = PUBLIC[name]
    logprobs = LOGPROBS.clone().requires_grad_()
    loss, metrics = policy_loss(
        logprobs,
        PROXIMAL,
        ROLLOUT,
        ADVANTAGES,
        MASK,
        Loss(**settings),
        reference=REFERENCE,
        entropy=ENTROPY,
    )
    loss.backward()
    assert loss.item() == pytest.approx(expected, rel=1e-8)
    assert logprobs.grad[MASK.bool()].tolist() == pytest.approx([*chain(*gradient)], rel=1e-7, abs=1e-10)
    if "kl" in settings:
        assert float(metrics["kl"]) == pytest.approx(0.025161352387980826, rel=1e-6)


# measure | level | bounds in nats | the action tokens that verl keeps
KEPT = [
    ("token", "k1", math.log(0.7), math.log(1.25), [1, 0, 1, 0, 1, 0, 1, 1, 1, 1, 1]),
    ("token", "k2", None, 0.05, [1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1]),
    ("token", "k3", None, 0.04, [1, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1]),
    ("sequence", "k1", math.log(0.9), math.log(1.25), [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
    ("sequence", "k2", None, 0.1, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
    ("sequence", "k3", None, 0.1, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
]


@pytest.mark.parametrize(("level", "measure", "low", "high", "kept"), KEPT)
def test_tokens_are_rejected_as_by_public_code(level, measure, low, high, kept):
    config = Loss(rejection=level, rejection_measure=measure, rejection_low=low, rejection_high=high)
    keep = MASK.bool()
    found = rejected(PROXIMAL[keep], ROLLOUT[keep], MASK.sum(-1).long(), config)
    assert (~found).int().tolist() == kept
