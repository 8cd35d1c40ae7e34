"""One whole update, or a few, in each variant of the loss: options of `gradients.compute`."""

import math

CLIPPED = {"clip_low": 0.002, "clip_high": 0.002}  # by so little that one step of the optimizer is enough
VARIANTS = {
    "GSPO": {
        "minibatches": 2,
        "loss": {"ratio": "sequence", "aggregation": "sequence", "dual_clip": math.inf} | CLIPPED,
    },
    "Dr. GRPO": {"minibatches": 2, "loss": {"aggregation": "constant", "proximal": "rollout"}},
    "weights by sequence": {"minibatches": 3, "loss": {"importance": "sequence", "aggregation": "sequence"}},
    "tokens rejected": {"minibatches": 2, "loss": {"rejection": "token", "rejection_high": 0.05}},
    "trajectories rejected": {
        "loss": {"rejection": "sequence", "rejection_measure": "k1", "rejection_low": -0.05, "rejection_high": 0.05}
    },
    "KL to the initial policy": {"updates": 2, "loss": {"kl": 0.5}},
    "KL to an EWMA, entropy": {
        "updates": 3,
        "loss": {"kl": 0.5, "reference": "ewma", "reference_decay": 0.8, "entropy": 0.1, "aggregation": "sequence"},
    },
    "overlong": {"advantage": {"overlong_buffer": 2000, "overlong_penalty": 0.5}},
}
