"""A scripted stand-in for an engine, for what no real one can be made to say."""

import numpy as np

from pipeline.ledger_types import Reservation
from pipeline.trajectory import Segment
from workers.engine import Reply


class Scripted:
    """Says the given replies, one a turn; one ending in … or | is cut there, without an end token: by its length, or by
    a stop string."""

    def __init__(self, chat, *replies: str, version: int = 0):
        self.chat, self.replies, self.version = chat, list(replies), version
        self.prompts: list[list[int]] = []

    async def generate(self, tokens, max_tokens, at_least=0, seed=0):
        self.prompts.append(list(tokens))
        text = self.replies.pop(0)
        finish = {"…": "length", "|": "stop_string"}.get(text[-1:], "stop")
        ids = self.chat.encode(text.rstrip("…|")) + ([self.chat.end_token] if finish == "stop" else [])
        ids = ids[:max_tokens]
        logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32)
        return Reply(ids, logprobs, finish, [Segment(0, len(ids), "scripted", self.version)])


def reservation(payload: bytes, version: int = 0) -> Reservation:
    return Reservation("entry-1", "prompt-1", payload, version, version + 2, 3, 0.25, 1)
