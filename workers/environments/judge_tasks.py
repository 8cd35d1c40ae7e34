"""What reasoning-gym's own verifiers say; in the judge's confined child (judge.py), never in a worker: some of them
evaluate the answer as Python (evaluated.py).

Importing this makes the verifiers of all tasks, because the fork server imports it before it forks.
"""

from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from workers.environments.evaluated import harmless

MADE_OF_OTHERS = {"composite"}
GRIDS = {"arc_agi", "rearc"}  # which compare tuples, where JSON has lists

VERIFIERS = {task: reasoning_gym.get_score_answer_fn(task) for task in DATASETS if task not in MADE_OF_OTHERS}


def score(answer: str, problem: dict[str, Any]) -> float:
    """The verifier's own number."""
    if not harmless(answer, problem["task"]):
        return 0.0
    if problem["task"] in GRIDS:
        grid = tuple(tuple(row) for row in problem["metadata"]["output"])
        problem = problem | {"metadata": problem["metadata"] | {"output": grid}}
    return float(VERIFIERS[problem["task"]](answer, problem))
