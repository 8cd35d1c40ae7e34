"""Trajectories in a file: the same ones come back, in their order, or an error says what is wrong."""

import pytest

from pipeline.errors import BadTrajectory, ConfigError
from pipeline.trajectory import Trajectory
from pipeline.trajectory_file import read, write


def trajectories(count):
    return [
        Trajectory(
            prompt_id="p",
            entry=f"e{number}",
            version=0,
            event=0,
            value=0.5,
            outcome=1.0,
            tokens=[number] * (number + 1),
            loss_mask=[1] * (number + 1),
            rollout_logprobs=[-1.0] * (number + 1),
            segments=[(0, number + 1, "script", 0)],
        )
        for number in range(count)
    ]


def test_what_was_written_is_read_in_its_order(tmp_path):
    given = trajectories(5)
    write(tmp_path / "traces.bin", given)
    found = read(tmp_path / "traces.bin")
    assert [t.encode() for t in found] == [t.encode() for t in given]
    assert [path.name for path in tmp_path.iterdir()] == ["traces.bin"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "traces.bin"
    write(path, trajectories(2))
    bad = trajectories(3)
    object.__setattr__(bad[2], "outcome", 2.0)
    with pytest.raises(BadTrajectory):
        write(path, bad)
    assert len(read(path)) == 2


def test_a_missing_file_says_who_writes_it(tmp_path):
    with pytest.raises(ConfigError, match=r"workers\.traces"):
        read(tmp_path / "traces.bin")


@pytest.mark.parametrize("cut", [1, 100, -2])
def test_a_cut_file_is_refused(tmp_path, cut):
    path = tmp_path / "traces.bin"
    write(path, trajectories(1))
    one = path.stat().st_size
    write(path, trajectories(2))
    path.write_bytes(path.read_bytes()[: one + cut if cut > 0 else cut])
    with pytest.raises(ConfigError, match="ends within trajectory 1"):
        read(path)
