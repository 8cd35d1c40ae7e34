"""Trajectories of given lengths for benches of an update: all the rest of them is drawn, by their number."""

import numpy as np

from pipeline.trajectory import Trajectory

PROMPT = 0.25  # of each trajectory


def trajectory(number: int, length: int, vocabulary: int) -> Trajectory:
    draw = np.random.default_rng(number)
    prompt = int(PROMPT * length)
    mask = (np.arange(length) >= prompt).astype(np.uint8)
    return Trajectory(
        prompt_id=f"p{number}",
        entry=f"e{number}",
        version=0,
        event=0,
        value=float(draw.uniform(0.2, 0.8)),
        outcome=float(draw.integers(0, 2)),
        tokens=draw.integers(0, vocabulary, length).astype(np.int32),
        loss_mask=mask,
        rollout_logprobs=(mask * (draw.normal(0, 0.3, length) - np.log(vocabulary))).astype(np.float32),
        segments=[(prompt, length - prompt, "engine", 0)],
    )
