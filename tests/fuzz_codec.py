"""Forged messages for the codec: each decodes to a trajectory that can be trained and travels again, or is refused.

    good messages ─▶ one to three of MUTATIONS ─▶ Trajectory.decode ─▶ BadTrajectory(code)
                                                        └─▶ Trajectory ─▶ trainable() ─▶ encode ─▶ decode: the same

A trial to be run by hand, `python -m tests.fuzz_codec --messages 1000000 --seed 1`; a short one is a test.
"""

import argparse
import math
import random
import resource
import struct
import time
from collections import Counter
from dataclasses import fields

import msgpack
import numpy as np

from pipeline.errors import BadTrajectory
from pipeline.trajectory import Trajectory

LIMIT = 1 << 16
GOOD = [  # prompt │ generated │ tool output │ generated, from a few tokens to a few hundred
    Trajectory(
        prompt_id=f"chain_sum-{turns}",
        entry="e" * turns,
        member=turns - 1,
        version=turns,
        event=turns,
        value=0.5,
        outcome=1 / turns,
        metrics={"turns": turns, "score": 0.25},
        tokens=list(range(turns * 2 * width)),
        loss_mask=([0] * width + [1] * width) * turns,
        rollout_logprobs=([0.0] * width + [-0.5] * width) * turns,
        segments=[(width * (2 * n + 1), width, f"e{n}", turns + n) for n in range(turns)],
    )
    for turns, width in ((1, 1), (2, 3), (3, 5), (4, 40))
]
FLOATS = [math.nan, math.inf, -math.inf, -0.0, 1e-4, 1.0001e-4, -1e308, 5e-324]
INTS = [-(2**63), -1, 0, 1, 2**31, 2**53 - 1, 2**53, 2**64 - 1]
HOSTILE = [None, True, False, "", "x", "x" * 5000, b"", b"\xff" * 12, [], {}, [[]], {"": 0}, *FLOATS, *INTS]
HEADERS = [  # of a bin, text, array, map or ext that declares more than any message holds
    code + struct.pack(size, number)
    for code, size in ((b"\xc6", ">I"), (b"\xdb", ">I"), (b"\xdd", ">I"), (b"\xdf", ">I"), (b"\xc9", ">I"))
    for number in (2**32 - 1, 2**31, 4097, 257)
] + [b"\xdc\x10\x00", b"\xde\x01\x00", b"\xd4\xff", b"\xc7\x00\xff", b"\xc1"]


def tokens(value):
    """The message in pieces: headers of maps and arrays, keys, and single values."""
    if isinstance(value, dict):
        yield msgpack.Packer().pack_map_header(len(value))
        for key, inner in value.items():
            yield msgpack.packb(key)
            yield from tokens(inner)
    elif isinstance(value, list):
        yield msgpack.Packer().pack_array_header(len(value))
        for inner in value:
            yield from tokens(inner)
    else:
        yield msgpack.packb(value)


PIECES = [list(tokens(msgpack.unpackb(good.encode()))) for good in GOOD]

# -- mutations: of the pieces of a message, in place


def set_a_field(r, pieces):
    message = msgpack.unpackb(b"".join(pieces))
    message[r.choice(list(message))] = r.choice(HOSTILE)
    pieces[:] = tokens(message)


def set_a_number_of_an_array(r, pieces):
    message = msgpack.unpackb(b"".join(pieces))
    array = message[r.choice(["tokens", "loss_mask", "rollout_logprobs"])]
    dtype = np.dtype(array[0])
    numbers = np.frombuffer(array[2], dtype).copy()
    numbers[r.randrange(len(numbers))] = r.choice(FLOATS[:-2] if dtype.kind == "f" else [0, 1, 2, 255])
    array[2] = numbers.tobytes()
    pieces[:] = tokens(message)


def change_the_length_of_an_array(r, pieces):
    message = msgpack.unpackb(b"".join(pieces))
    array = message[r.choice(["tokens", "loss_mask", "rollout_logprobs"])]
    array[r.randrange(3)] = r.choice(["<i8", "<f8", "|u1", "<f4", "O", *INTS, array[2][: r.randrange(len(array[2]))]])
    pieces[:] = tokens(message)


def shift_a_segment(r, pieces):
    message = msgpack.unpackb(b"".join(pieces))
    r.choice(message["segments"])[r.choice([0, 1, 3])] += r.choice([-1, 1])
    pieces[:] = tokens(message)


def swap_a_type(r, pieces):
    pieces[r.randrange(len(pieces))] = msgpack.packb(r.choice(HOSTILE))


def declare_a_huge_length(r, pieces):
    pieces[r.randrange(len(pieces))] = r.choice(HEADERS)


def nest(r, pieces):
    depth = r.choice([1, 1, 2, 2, 9, 9, 500, 5000])
    pieces[r.randrange(len(pieces))] = r.choice([b"\x91", b"\x81\xa1a", b"\xdc\x10\x00"]) * depth


def repeat(r, pieces):
    """A stretch twice, and half of the time a header that counts it: then a key may come twice."""
    start = r.randrange(len(pieces))
    stretch = pieces[start : start + r.choice([1, 2, 2, 4])]
    pieces[start:start] = stretch
    if r.random() < 0.5 and pieces[0][:1] == b"\x8f":
        pieces[0] = msgpack.Packer().pack_map_header(15 + len(stretch) // 2)


def drop(r, pieces):
    start = r.randrange(len(pieces))
    del pieces[start : start + r.choice([1, 1, 2, 8])]


def splice(r, pieces):
    other = r.choice(PIECES)
    pieces[r.randrange(len(pieces)) :] = other[r.randrange(len(other)) :]


def flip_bits(r, pieces):
    data = bytearray(b"".join(pieces))
    for _ in range(r.choice([1, 1, 2, 8])):
        data[r.randrange(len(data))] ^= 1 << r.randrange(8)
    pieces[:] = [bytes(data)]


def truncate(r, pieces):
    data = b"".join(pieces)
    pieces[:] = [data[: r.randrange(len(data))]]


def insert_bytes(r, pieces):
    data = b"".join(pieces)
    at = r.randrange(len(data) + 1)
    pieces[:] = [data[:at] + r.randbytes(r.choice([1, 2, 9])) + data[at + r.choice([0, 1, 9]) :]]


WELL_FORMED = [set_a_field, set_a_number_of_an_array, change_the_length_of_an_array, shift_a_segment]
MALFORMED = [swap_a_type, declare_a_huge_length, nest, repeat, drop, splice, flip_bits, truncate, insert_bytes]


def forged(r):
    """One message: well-formed mutations come first, since they read the message."""
    pieces = list(r.choice(PIECES))
    r.choice(3 * WELL_FORMED + MALFORMED)(r, pieces)
    for _ in range(r.choice([0, 0, 0, 1, 2])):
        if len(b"".join(pieces)) > 1:
            r.choice(MALFORMED)(r, pieces)
    return b"".join(pieces)


# -- the verdict


def trainable(t):
    """Whether a trainer can use t; written number by number from the drawing at the head of pipeline/trajectory.py."""
    owners = [0] * len(t.tokens)
    for start, length, engine, version in t.segments:
        if length < 1 or not engine or version < t.version or not 0 <= start <= start + length <= len(owners):
            return False
        for i in range(start, start + length):
            owners[i] += 1
    numbers = [t.value, t.outcome, t.reward, *t.metrics.values(), *t.rollout_logprobs.tolist()]
    return (
        len(t.tokens) == len(t.loss_mask) == len(t.rollout_logprobs) > 0
        and all(math.isfinite(number) for number in numbers)
        and 0 <= t.value <= 1
        and 0 <= t.outcome <= 1
        and min(t.member, t.version, t.event, *t.tokens.tolist()) >= 0
        and all(mask in (0, 1) for mask in t.loss_mask.tolist())
        and all(p <= 2e-4 if mask else p == 0 for p, mask in zip(t.rollout_logprobs.tolist(), t.loss_mask, strict=True))
        and all(owner == 1 if mask else owner <= 1 for owner, mask in zip(owners, t.loss_mask, strict=True))
        and all(isinstance(text, str) and text for text in (t.prompt_id, t.entry, t.finish_reason))
    )


def same(a, b):
    return all(
        np.array_equal(getattr(a, f.name), getattr(b, f.name))
        if isinstance(getattr(a, f.name), np.ndarray)
        else getattr(a, f.name) == getattr(b, f.name)
        for f in fields(Trajectory)
    )


def verdict(data):
    """The code of the refusal, or "accepted". Any other exception, and an assertion, is a defect of the codec."""
    try:
        found = Trajectory.decode(data, LIMIT)
    except BadTrajectory as error:
        assert error.code and len(str(error)) < 1000, str(error)[:2000]
        return error.code
    assert trainable(found), found
    assert same(Trajectory.decode(found.encode(), LIMIT), found), found
    return "accepted"


def run(messages, seed):
    """How often each verdict was given. Raises AssertionError with the number of the message that shows a defect."""
    r, verdicts = random.Random(seed), Counter()
    for number in range(messages):
        data = forged(r)
        try:
            verdicts[verdict(data)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, message {number}: {data[:500]!r}") from error
    return verdicts


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begun, before = time.monotonic(), peak_mib()
    for code, count in run(options.messages, options.seed).most_common():
        print(f"{code:<12}{count:>10,}")
    print(f"{options.messages:,} in {time.monotonic() - begun:.0f} s, peak {peak_mib()} MiB, {before} MiB before")


if __name__ == "__main__":
    main()
