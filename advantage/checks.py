"""What every function of this package asks of its input, and the one error it raises otherwise."""

import numpy as np


class BadInput(ValueError):
    """Input that no formula covers; `code` is EMPTY | LENGTH | MISSING | NOT_FINITE | RANGE | SHAPE | UNKNOWN."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def numbers(name, given):
    """`given` as finite float64[n]; raises BadInput that names the first bad index and its value."""
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput("SHAPE", f"{name}: expected a list of numbers, found {given!r:.80}") from error
    if array.ndim != 1:
        raise BadInput("SHAPE", f"{name}: expected one number per trajectory, found an array of shape {array.shape}")
    refuse(name, array, ~np.isfinite(array), "NOT_FINITE", "a finite number")
    return array


def counts(name, given):
    """`given` as float64[n] of whole numbers >= 0."""
    array = numbers(name, given)
    refuse(name, array, (array < 0) | (array != np.floor(array)), "RANGE", "a count of tokens, a whole number >= 0")
    return array


def fractions(name, given):
    """`given` as float64[n] in [0, 1]."""
    array = numbers(name, given)
    refuse(name, array, (array < 0) | (array > 1), "RANGE", "a number in [0, 1]")
    return array


def refuse(name, array, bad, code, expected):
    if bad.any():
        index = int(np.argmax(bad))
        raise BadInput(
            code, f"{name}[{index}] is {array[index]:g}, expected {expected}; {int(bad.sum())} such of {bad.size}"
        )


def same_length(**arrays):
    """Raises BadInput unless all that are not None have one length."""
    lengths = {name: len(array) for name, array in arrays.items() if array is not None}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise BadInput("LENGTH", f"expected equal lengths, found {found}")


def known(kind, name, names):
    """`name`, or BadInput that lists the names there are."""
    if name not in names:
        raise BadInput("UNKNOWN", f"unknown {kind} {name!r}; known: {', '.join(names)}")
    return name
