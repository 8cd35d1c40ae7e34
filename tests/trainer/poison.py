"""Faults of a model, at will: NaN wherever a token was seen, or an overflow in the backward pass alone."""

import numpy as np
import torch

from tests.trainer.ledger import trajectory

TOKEN = 319  # the last of the vocabulary, which no other trajectory has


def poison(model):
    """From here on whatever comes after TOKEN is NaN. Returns what takes it back."""

    def spoil(_module, given, found):
        return torch.where((given[0] == TOKEN)[..., None], torch.nan, found)

    return model.get_input_embeddings().register_forward_hook(spoil)


def overflow_backward(module):
    """The gradient of what the module returns is infinite."""

    def spoil(_module, _given, found):
        if found.requires_grad:
            found.register_hook(lambda gradient: gradient * torch.inf)

    return module.register_forward_hook(spoil)


def poisoned(seed: int, **fields):
    """`trajectory`, with TOKEN in its prompt."""
    clean = trajectory(seed, vocabulary=TOKEN, **fields)
    tokens = np.array(clean.tokens)
    tokens[1] = TOKEN
    return trajectory(seed, vocabulary=TOKEN, **fields | {"tokens": tokens})


def batch(*poison: int):
    """Thirteen trajectories, of which those at `poison` have TOKEN."""
    return [
        poisoned(i, longest=100) if i in poison else trajectory(i, vocabulary=TOKEN, longest=100) for i in range(13)
    ]
