"""The learning rate, of a step's number alone: nothing of it is in a checkpoint, and a run that resumes has the same.

lr ┤   ╭──── constant
   │  ╱ ╲╲
   │ ╱    ╲ ╲  linear, cosine
low┤╱       ╲──╲────
   └┬──┬──────────┬──▶ step
    1  warm_up    decay_steps + 1
"""

import math


def learning_rate(
    step: int, lr: float, schedule: str, warm_up: int = 0, decay_steps: int | None = None, lowest: float = 0.0
) -> float:
    """Of step 1, 2, …: a line from 0 that reaches lr at step `warm_up`, then what the schedule says.

    schedule     "constant" | "linear" | "cosine": half a wave (SGDR, 1608.03983 Eq. 5, without restarts)
    decay_steps  steps, those of `warm_up` among them, after which the rate is at its lowest and stays
    lowest       as a share of lr
    """
    if step <= warm_up:
        return lr * step / warm_up
    if schedule == "constant":
        return lr
    gone = min(1.0, (step - 1 - warm_up) / (decay_steps - warm_up))
    left = 1 - gone if schedule == "linear" else (1 + math.cos(math.pi * gone)) / 2
    return lr * (lowest + (1 - lowest) * left)
