"""The problems of `data.tasks.number_guessing`: games that differ in nothing but their name, each with its own number.

    seed + i ──▶ {"id": "number_guessing-3", "question": "Guess my number from 0 to 99: game 48213", "answer": "57"}
                                                                         the name's digest mod 100 ──┘

The number follows from the name, so a game that comes again has the same one and a prompt's value means something; and
nothing in the question tells it. No parameters.
"""

import hashlib
import random
from collections.abc import Iterator
from typing import Any

TASK = "number_guessing"
NUMBERS = 100  # 0 … 99


def games(size: int, seed: int) -> Iterator[dict[str, Any]]:
    """`size` games; as of reasoning-gym's problems, number i is the first one of seed + i."""
    for index in range(size):
        name = str(random.Random(seed + index).randrange(10_000, 100_000))
        question = f"Guess my number from 0 to {NUMBERS - 1}: game {name}"
        yield {"id": f"{TASK}-{index}", "task": TASK, "question": question, "answer": str(secret(name))}


def secret(name: str) -> int:
    """The number of the game that is called so."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % NUMBERS
