import dataclasses
import time

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import BadTrajectory
from pipeline.trajectory import ARRAYS, Trajectory
from tests import fuzz_codec


def trajectory(**changes):
    """Two turns: [prompt ×3, generated ×2, tool ×1, generated ×2]."""
    fields = {
        "prompt_id": "chain_sum-17",
        "entry": "e1",
        "member": 0,
        "version": 3,
        "event": 3,
        "value": 0.5,
        "outcome": 1.0,
        "finish_reason": "stop",
        "metrics": {"turns": 2},
        "tokens": [7, 8, 9, 20, 21, 30, 22, 23],
        "loss_mask": [0, 0, 0, 1, 1, 0, 1, 1],
        "rollout_logprobs": [0, 0, 0, -0.5, -1.5, 0, -0.25, 0],
        "segments": [(3, 2, "engine-0", 3), (6, 2, "engine-1", 4)],
    }
    return Trajectory(**(fields | changes))


def same(a, b):
    return all(
        np.array_equal(getattr(a, f.name), getattr(b, f.name))
        if f.name in ARRAYS
        else getattr(a, f.name) == getattr(b, f.name)
        for f in dataclasses.fields(Trajectory)
    )


@st.composite
def trajectories(draw):
    version = draw(st.integers(0, 1000))
    turns = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(0, 3)), max_size=6))
    mask, segments = [0], []
    for observed, generated, newer in turns:
        mask += [0] * observed
        segments.append((len(mask), generated, f"engine-{newer}", version + newer))
        mask += [1] * generated
    size = len(mask)
    logprobs = draw(st.lists(st.floats(-50, 0, width=32), min_size=size, max_size=size))
    finite = st.floats(allow_nan=False, allow_infinity=False)
    return Trajectory(
        prompt_id=draw(st.text(min_size=1)),
        entry=draw(st.text(min_size=1)),
        member=draw(st.integers(0, 64)),
        version=version,
        event=draw(st.integers(0, 1000)),
        value=draw(st.floats(0, 1)),
        outcome=draw(st.floats(0, 1)),
        reward=draw(st.floats(-1e6, 1e6)),
        finish_reason=draw(st.sampled_from(["stop", "length", "turns"])),
        metrics=draw(st.dictionaries(st.text(), finite, max_size=4)),
        tokens=draw(st.lists(st.integers(0, 2**31 - 1), min_size=size, max_size=size)),
        loss_mask=mask,
        rollout_logprobs=[p * m for p, m in zip(logprobs, mask, strict=True)],
        segments=segments,
    )


@given(trajectories())
def test_what_is_decoded_is_what_was_encoded(sent):
    assert same(Trajectory.decode(sent.encode()), sent)


@settings(max_examples=300)
@given(trajectories(), st.data())
def test_mutated_bytes_raise_bad_trajectory_and_nothing_else(sent, data):
    message = bytearray(sent.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(message) - 1))
        cut = data.draw(st.integers(0, 3))
        message[at : at + cut] = data.draw(st.binary(max_size=3))
        if not message:
            break
    try:
        Trajectory.decode(bytes(message)).encode()
    except BadTrajectory as error:
        assert error.code and len(str(error)) < 1000


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_bad_trajectory(data):
    with pytest.raises(BadTrajectory):
        Trajectory.decode(data)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(ANYTHING, st.data())
def test_any_value_in_any_field_is_accepted_or_refused_by_name(value, data):
    message = msgpack.unpackb(trajectory().encode())
    message[data.draw(st.sampled_from(sorted(message)))] = value
    try:
        Trajectory.decode(msgpack.packb(message))
    except BadTrajectory as error:
        assert error.code


def test_a_deeply_nested_message_is_refused():
    head = msgpack.packb(msgpack.unpackb(trajectory().encode()) | {"segments": 0})
    for depth in (900, 1020, 5000):
        with pytest.raises(BadTrajectory):
            Trajectory.decode(head[:-1] + b"\x91" * depth + b"\x00")


def test_forged_messages_are_trainable_or_refused():
    """The trial `python -m tests.fuzz_codec` makes a million of them."""
    verdicts = fuzz_codec.run(messages=8_000, seed=3)
    assert verdicts.total() == 8_000
    assert {"accepted", "FORMAT", "FIELDS", "SCHEMA", "TYPE", "RANGE", "NOT_FINITE", "DTYPE"} < verdicts.keys()
    assert {"LENGTH", "MASK", "SEGMENTS", "OLD"} < verdicts.keys()


def test_a_key_that_comes_twice_is_refused():
    data = trajectory().encode()
    header = msgpack.Packer().pack_map_header(len(msgpack.unpackb(data)) + 1)
    twice = header + data[1:] + msgpack.packb("outcome") + msgpack.packb(0.5)
    with pytest.raises(BadTrajectory, match="a key comes twice") as refused:
        Trajectory.decode(twice)
    assert refused.value.code == "FORMAT"


def test_unknown_and_missing_fields_are_named_and_a_long_name_is_cut():
    message = msgpack.unpackb(trajectory().encode())
    with pytest.raises(BadTrajectory, match=r"found unknown fields: 'reward_2', 'xxx.*xxx'") as refused:
        Trajectory.decode(msgpack.packb(message | {"reward_2": 1, "x" * 10_000: 2}))
    assert refused.value.code == "FIELDS" and len(str(refused.value)) < 200
    del message["outcome"]
    with pytest.raises(BadTrajectory, match="expected also fields: 'outcome'"):
        Trajectory.decode(msgpack.packb(message))


def test_decoded_arrays_are_views_of_the_message():
    decoded = Trajectory.decode(memoryview(trajectory().encode()))
    for name, dtype in ARRAYS.items():
        array = getattr(decoded, name)
        assert array.dtype == dtype and not array.flags.owndata and not array.flags.writeable


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("TYPE", {"prompt_id": ""}),
        ("TYPE", {"entry": 5}),
        ("TYPE", {"prompt_id": "\ud800"}),
        ("RANGE", {"member": -1}),
        ("RANGE", {"version": 2**53}),
        ("RANGE", {"event": 1.0}),
        ("RANGE", {"value": 1.01}),
        ("RANGE", {"outcome": -0.5, "reward": 0.0}),
        ("NOT_FINITE", {"outcome": float("nan")}),
        ("NOT_FINITE", {"reward": float("inf")}),
        ("TYPE", {"outcome": None}),
        ("NOT_FINITE", {"metrics": {"seconds": float("nan")}}),
        ("TYPE", {"metrics": {1: 2.0}}),
        ("TYPE", {"metrics": [1]}),
        ("LENGTH", {"tokens": [1, 2]}),
        ("LENGTH", {"tokens": [], "loss_mask": [], "rollout_logprobs": [], "segments": []}),
        ("RANGE", {"tokens": [-1] * 8}),
        ("DTYPE", {"tokens": [0.5] * 8}),
        ("DTYPE", {"tokens": [2**31] * 8}),
        ("DTYPE", {"tokens": [[1] * 8]}),
        ("DTYPE", {"tokens": ["1"] * 8}),
        ("MASK", {"loss_mask": [0, 0, 0, 2, 1, 0, 1, 1]}),
        ("MASK", {"rollout_logprobs": [-1, 0, 0, -0.5, -1.5, 0, 0, 0]}),
        ("NOT_FINITE", {"rollout_logprobs": [0, 0, 0, float("nan"), 0, 0, 0, 0]}),
        ("NOT_FINITE", {"rollout_logprobs": [0, 0, 0, float("-inf"), 0, 0, 0, 0]}),
        ("RANGE", {"rollout_logprobs": [0, 0, 0, 0.01, 0, 0, 0, 0]}),
        ("SEGMENTS", {"segments": [(3, 2, "a", 3)]}),
        ("SEGMENTS", {"segments": [(6, 2, "a", 3), (3, 2, "a", 3)]}),
        ("SEGMENTS", {"segments": [(3, 4, "a", 3), (6, 2, "a", 3)]}),
        ("SEGMENTS", {"segments": [(3, 6, "a", 3)]}),
        ("SEGMENTS", {"segments": [(3, 0, "a", 3), (3, 5, "a", 3)]}),
        ("SEGMENTS", {"segments": [(3, 5, "", 3)]}),
        ("SEGMENTS", {"segments": [(3, 5, "a")]}),
        ("RANGE", {"segments": [(-1, 9, "a", 3)]}),
        ("OLD", {"segments": [(3, 2, "a", 3), (6, 2, "a", 2)]}),
    ],
)
def test_a_trajectory_that_could_not_be_trained_is_refused_before_it_is_sent(code, changes):
    with pytest.raises(BadTrajectory) as refused:
        trajectory(**changes).encode()
    assert refused.value.code == code


def test_rounding_of_a_certain_tokens_log_prob_is_accepted():
    trajectory(rollout_logprobs=[0, 0, 0, 5e-5, 0, 0, 0, 0]).encode()


def test_the_outcome_is_the_reward_unless_another_is_given():
    assert trajectory(outcome=0.25).reward == 0.25
    assert trajectory(outcome=0.25, reward=-3.0).reward == -3.0


def test_a_trajectory_without_action_tokens_travels():
    silent = trajectory(loss_mask=[0] * 8, rollout_logprobs=[0] * 8, segments=[])
    assert Trajectory.decode(silent.encode()).action_tokens == 0


def test_more_bytes_than_the_limit_are_refused_by_sender_and_receiver():
    data = trajectory().encode(limit=1000)
    assert Trajectory.decode(data, limit=len(data))
    for refuse in (lambda: trajectory().encode(limit=100), lambda: Trajectory.decode(data, limit=len(data) - 1)):
        with pytest.raises(BadTrajectory, match="max_trajectory_bytes") as refused:
            refuse()
        assert refused.value.code == "SIZE"


def test_another_schema_is_refused_with_what_to_do():
    message = msgpack.unpackb(trajectory().encode()) | {"schema": 2}
    with pytest.raises(BadTrajectory, match="expected schema 1, found 2: run one version") as refused:
        Trajectory.decode(msgpack.packb(message))
    assert refused.value.code == "SCHEMA"


def test_twenty_thousand_tokens_take_microseconds():
    size = 20_000
    long = trajectory(
        tokens=np.arange(size, dtype=np.int32),
        loss_mask=np.ones(size, np.uint8),
        rollout_logprobs=np.full(size, -1, np.float32),
        segments=[(0, size, "engine-0", 3)],
    )
    data = long.encode()
    for work in (long.encode, lambda: Trajectory.decode(data)):
        seconds = []
        for _ in range(30):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        assert min(seconds) < 500e-6, f"{min(seconds) * 1e6:.0f} µs"
