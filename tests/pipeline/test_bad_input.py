"""Bad input at the ledger: refused with a code and a message, nothing is written, and what is right still goes in."""

import re

import msgpack
import numpy as np
import pytest

from pipeline import keys
from pipeline.coordinator import Placed, Ref, Refused
from pipeline.errors import BadTrajectory

NAN, INFINITE = float("nan"), float("inf")

# code | what the message says | what is wrong with [prompt, generated, generated]
BAD = [
    ("TYPE", "prompt_id: expected a text that is not empty, found ''", {"prompt_id": ""}),
    ("TYPE", "finish_reason: expected a text .* found None", {"finish_reason": None}),
    ("TYPE", "entry: expected a text .* found 5", {"entry": 5}),
    ("TYPE", "expected text, numbers and arrays only: .*surrogates", {"finish_reason": "\ud800"}),
    ("RANGE", "member: expected a whole number >= 0, found -1", {"member": -1}),
    ("RANGE", "member: expected a whole number >= 0, found 0.0", {"member": 0.0}),
    ("RANGE", "version: expected a whole number >= 0, found True", {"version": True}),
    ("RANGE", "event: expected a whole number >= 0, found 9007199254740992", {"event": 2**53}),
    ("RANGE", r"value: expected a number in \[0, 1\], found 1.5", {"value": 1.5}),
    ("RANGE", r"outcome: expected a number in \[0, 1\], found 1.0001", {"outcome": 1.0001}),
    ("RANGE", r"outcome: expected a number in \[0, 1\], found -0.5", {"outcome": -0.5}),
    ("TYPE", "outcome: expected a number, found 'good'", {"outcome": "good"}),
    ("NOT_FINITE", "outcome: expected a finite number, found nan", {"outcome": NAN}),
    ("NOT_FINITE", "reward: expected a finite number, found nan", {"reward": NAN}),
    ("NOT_FINITE", "reward: expected a finite number, found -inf", {"reward": -INFINITE}),
    ("RANGE", r"reward: expected at most 1e\+06 either way, found -1e\+30; scale it", {"reward": -1e30}),
    ("NOT_FINITE", r"metrics\['score'\]: expected a finite number, found nan", {"metrics": {"score": NAN}}),
    ("TYPE", "metrics: expected a dict of at most 256", {"metrics": {str(n): 0 for n in range(257)}}),
    ("TYPE", "metrics: expected names as keys, found 1", {"metrics": {1: 1.0}}),
    ("DTYPE", r"tokens: expected int32\[T\], found None", {"tokens": None}),
    ("DTYPE", r"tokens: expected int32\[T\], found \[0.5, 1, 2\]", {"tokens": [0.5, 1, 2]}),
    ("DTYPE", r"tokens: expected int32\[T\], found \[1, 2, 4294967296\]", {"tokens": [1, 2, 2**32]}),
    ("DTYPE", r"tokens: expected int32\[T\], found int32\[1, 3\]", {"tokens": np.ones((1, 3), np.int32)}),
    ("DTYPE", r"rollout_logprobs: expected float32\[T\], found", {"rollout_logprobs": np.ones(3, complex)}),
    ("RANGE", "tokens: expected ids >= 0, found -1", {"tokens": [1, -1, 3]}),
    ("LENGTH", "expected arrays of one length T >= 1, found {'tokens': 2, 'loss_mask': 3", {"tokens": [1, 2]}),
    ("LENGTH", "'loss_mask': 4", {"loss_mask": [0, 1, 1, 0]}),
    ("LENGTH", "'rollout_logprobs': 0", {"rollout_logprobs": []}),
    ("MASK", "loss_mask: expected only 0 and 1, found 2", {"loss_mask": [0, 2, 1]}),
    ("MASK", r"rollout_logprobs\[0\] is -1.0, expected 0 where", {"rollout_logprobs": [-1, -1, -0.5]}),
    ("NOT_FINITE", r"rollout_logprobs\[1\]: expected a number, found nan", {"rollout_logprobs": [0, NAN, -1]}),
    ("NOT_FINITE", r"rollout_logprobs\[2\]: expected a number, found -inf", {"rollout_logprobs": [0, -1, -INFINITE]}),
    ("NOT_FINITE", r"rollout_logprobs\[1\]: expected a number, found inf", {"rollout_logprobs": [0, 1e300, -1]}),
    ("RANGE", r"rollout_logprobs\[2\]: expected at most 0, found 0.5", {"rollout_logprobs": [0, -1, 0.5]}),
    ("SEGMENTS", "segments: expected a list, found None", {"segments": None}),
    ("SEGMENTS", r"expected \(start, length, engine, version\), found \(1, 2\)", {"segments": [(1, 2)]}),
    ("SEGMENTS", "engine: expected a name, found ''", {"segments": [(1, 2, "", 0)]}),
    ("SEGMENTS", "expected every action token in a segment, found 1 outside of all", {"segments": [(1, 1, "e0", 0)]}),
    ("SEGMENTS", "expected every action token in a segment, found 2 outside of all", {"segments": []}),
    (
        "SEGMENTS",
        r"segments\[1\]: .* within 3..3, .* found start 2, length 1",
        {"segments": [(1, 2, "e", 0), (2, 1, "e", 0)]},
    ),
    ("SEGMENTS", r"segments\[1\]: .* found start 1, length 1", {"segments": [(2, 1, "e", 0), (1, 1, "e", 0)]}),
    ("SEGMENTS", r"segments\[0\]: .* within 0..3, .* found start 1, length 3", {"segments": [(1, 3, "e", 0)]}),
    ("SEGMENTS", r"segments\[0\]: expected at least one token .* length 0", {"segments": [(1, 0, "e", 0)]}),
    ("SEGMENTS", "expected at most 4096 segments, found 5000", {"segments": [(1, 2, "e", 0)] * 5000}),
    ("RANGE", r"segments\[0\].start: expected a whole number >= 0, found -1", {"segments": [(-1, 4, "e", 0)]}),
    ("RANGE", r"segments\[0\].version: expected a whole number >= 0, found 0.5", {"segments": [(1, 2, "e", 0.5)]}),
    ("SIZE", r"expected at most 2000 bytes \(buffers.max_trajectory_bytes\), found", {"finish_reason": "x" * 2000}),
    ("PROMPT", "expected prompt_id 'p[0-9]+', as Reserve answered, found 'unknown'", {"prompt_id": "unknown"}),
    ("FOREIGN", "expected entry '.*', as Reserve answered, found 'unknown'", {"entry": "unknown"}),
    ("VERSION", "expected version 0, as Reserve answered, found 1", {"version": 1, "segments": [(1, 2, "e0", 1)]}),
]


def refused(d, entry, trajectories, code, said):
    """occupy raises BadTrajectory(code) which says so, and writes nothing."""
    before = d.everything()
    with pytest.raises(BadTrajectory) as error:
        d.c.occupy(entry, trajectories)
    assert error.value.code == code
    assert re.search(said, str(error.value)), str(error.value)
    assert len(str(error.value)) < 500
    assert d.everything() == before
    assert d.entry(entry)["state"] == "RESERVED"


def test_a_bad_trajectory_is_refused_and_the_right_one_still_goes_in(new_run, names):
    d = new_run(max_trajectory_bytes=2000)
    r = d.reserve()
    for code, said, changes in BAD:
        refused(d, r.entry, [names.trajectory(r, **changes)], code, said)
    assert d.finish(r) == Placed(0)


def test_a_client_that_did_not_reserve_the_entry_refuses_the_same(new_run, names):
    d = new_run(max_trajectory_bytes=2000)
    r = d.reserve()
    d.c = d.new_client()
    for code, said, changes in BAD:
        refused(d, r.entry, [names.trajectory(r, **changes)], code, said)
    assert d.finish(r) == Placed(0)


def test_a_segment_older_than_the_trajectory_is_refused_and_the_right_one_still_goes_in(new_run, names):
    d = new_run()
    d.update()
    r, before = d.reserve(), d.everything()
    for client in (d.c, d.new_client()):
        for segments in ([(1, 2, "e0", 0)], [(1, 1, "e0", 1), (2, 1, "e0", 0)]):
            assert d.finish(r, client=client, segments=segments) == Refused("OLD")
    assert d.everything() == before
    assert d.finish(r) == Placed(1)


def test_a_group_is_one_trajectory_of_each_member_all_of_one_entry(new_run, names):
    d = new_run(group_size=3)
    r, other = d.reserve(), d.reserve()

    def group(**last):
        return [names.trajectory(r), names.trajectory(r, member=1), names.trajectory(last.pop("of", r), **last)]

    right = group(member=2)
    for code, said, trajectories in (
        ("GROUP", "expected 3 trajectories, found 0", []),
        ("GROUP", "expected 3 trajectories, found 2", right[:2]),
        ("GROUP", "expected 3 trajectories, found 4", [*right, names.trajectory(r, member=3)]),
        ("MEMBER", r"expected each member once, found \[0, 1, 1\]", group(member=1)),
        ("FOREIGN", f"expected entry '{r.entry}', .* found '{other.entry}'", group(member=2, of=other)),
        (
            "PROMPT",
            f"expected prompt_id '{r.prompt}', .* found '{other.prompt}'",
            group(member=2, prompt_id=other.prompt),
        ),
        ("VERSION", "expected version 0, .* found 1", group(member=2, version=1, segments=[(1, 2, "e0", 1)])),
        ("NOT_FINITE", "reward: expected a finite number", group(member=2, reward=NAN)),
        ("RANGE", "outcome", group(member=2, outcome=2.0, reward=0.0)),
        ("LENGTH", "one length", group(member=2, tokens=[1])),
    ):
        refused(d, r.entry, trajectories, code, said)
    assert d.c.occupy(r.entry, right) == Placed(0)
    assert len(d.stored_payloads()) == 3


def test_an_entry_that_nobody_reserved_is_gone(new_run, names):
    d = new_run()
    r = d.reserve()
    before = d.everything()
    unknown = names.trajectory(r, entry="unknown")
    assert d.c.occupy("unknown", [unknown]) == Refused("GONE")
    assert d.everything() == before


@pytest.mark.parametrize(
    ("code", "forge"),
    [
        ("FORMAT", lambda data: b""),
        ("FORMAT", lambda data: data[:-1]),
        ("FORMAT", lambda data: data + b"\x00"),
        ("FORMAT", lambda data: b"\xc1" + data),
        ("FORMAT", lambda data: msgpack.packb([1, 2])),
        ("FORMAT", lambda data: b"\xdf\xff\xff\xff\xff" + data[1:]),
        ("FORMAT", lambda data: b"\xde\x00\x10" + data[1:] + msgpack.packb("value") + msgpack.packb(0.5)),
        ("SCHEMA", lambda data: data.replace(b"schema\x01", b"schema\x02")),
        ("FIELDS", lambda data: data.replace(b"outcome", b"outcom_")),
        ("DTYPE", lambda data: data.replace(b"<i4", b"<i8")),
        ("DTYPE", lambda data: data.replace(b"<f4", b">f4")),
        ("LENGTH", lambda data: data.replace(b"<i4\x03", b"<i4\x04")),
        ("NOT_FINITE", lambda data: data.replace(np.float32(-1).tobytes(), np.float32("nan").tobytes())),
    ],
)
def test_a_reader_refuses_what_was_written_past_the_ledger(new_run, names, code, forge):
    """Reserve, Occupy and Consume never see payloads; the reader of a batch checks every byte again."""
    d = new_run()
    r = d.reserve()
    d.client.xadd(keys.trajectories(d.run, names.worker), {"payload": forge(names.trajectory(r).encode())}, id="7-0")
    with pytest.raises(BadTrajectory) as error:
        d.c.fetch([Ref(r.entry, 0, names.worker, "7-0")])
    assert error.value.code == code


def test_another_workers_entry_is_gone(new_run, names):
    d = new_run()
    r, other = d.reserve(), d.new_client()
    other._reserved[r.entry] = ("w1-a", r.prompt, r.version)
    before = d.everything()
    assert d.finish(r, client=other) == Refused("GONE")
    assert d.everything() == before
    assert d.finish(r) == Placed(0)


@pytest.mark.parametrize(
    ("code", "changes", "members"),
    [
        ("PROMPT", {"prompt_id": "unknown"}, 1),
        ("VERSION", {"version": 1, "segments": [(1, 2, "e0", 1)]}, 1),
        ("GROUP", {}, 2),
    ],
)
def test_a_client_that_checks_nothing_is_refused_by_the_ledger(new_run, names, code, changes, members):
    d = new_run()
    r, careless = d.reserve(), d.new_client()
    careless._reserved[r.entry] = (names.worker, changes.get("prompt_id", r.prompt), changes.get("version", 0))
    careless._settings = careless.fields() | {"group_size": str(members)}
    with pytest.raises(BadTrajectory) as error:
        careless.occupy(r.entry, [names.trajectory(r, member=member, **changes) for member in range(members)])
    assert error.value.code == code
    assert (d.entry(r.entry)["state"], d.stored_payloads()) == ("RESERVED", set())
    assert d.finish(r) == Placed(0)
