"""What a checkpoint keeps of the prompts, and what stays on the disk. Its tensors: tests/trainer/test_checkpoint.py."""

import json

import pytest

from pipeline import checkpoint_folder
from pipeline.coordinator import Coordinator


def write(folder, version, **files):
    """A checkpoint of these files."""
    path = folder / str(version)
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / f"{name}.jsonl").write_text(text)
    digests = {f"{name}.jsonl": checkpoint_folder.digest_of(path / f"{name}.jsonl") for name in files}
    checkpoint_folder.write_state(path, {"version": version, "files": digests})
    return path


def line(**fields):
    return json.dumps(fields) + "\n"


@pytest.mark.parametrize("sampler", ["uncertainty", "shuffle"])
def test_prompts_that_a_checkpoint_has_are_in_another_redis_what_they_were(new_run, client, run, sampler):
    d = new_run(batch_size=2, max_staleness=1, sampler=sampler)
    for _ in range(3):
        d.update()
    running = d.reserve()
    kept = d.c.evidence()
    assert [prompt["id"] for prompt in kept].count(running.prompt) == 1, "also one in flight"
    assert {prompt["event"] for prompt in kept} > {0.0} and sum(prompt["visits"] for prompt in kept) == 6

    settings = {"batch_size": 2, "max_staleness": 1, "sampler": sampler}
    other = Coordinator.create(client, f"{run}-replaced", settings, seed=2)
    other.add_prompts(kept)
    assert other.evidence() == kept
    other.register_engine("engine", 0)
    if sampler == "shuffle":
        drawn = {other.reserve("worker-0-x", "engine").prompt for _ in range(4)}
        assert drawn <= {prompt["id"] for prompt in kept if not prompt["visits"]}, (
            "whose turn in this epoch it still is"
        )


def test_the_newest_whole_evidence_counts(tmp_path):
    write(tmp_path, 2, prompts=line(id="a", alpha=1.0))
    path = write(tmp_path, 10, prompts=line(id="a", alpha=2.0))
    (tmp_path / ".12-draft.new").mkdir()
    assert checkpoint_folder.newest(tmp_path) == path
    assert checkpoint_folder.read_prompts(tmp_path)["a"]["alpha"] == 2
    (path / "prompts.jsonl").write_text(line(id="a", alpha=3.0))
    assert checkpoint_folder.read_prompts(tmp_path)["a"]["alpha"] == 1
    assert checkpoint_folder.read_prompts(tmp_path / "none") == {}


def test_the_newest_few_are_kept_and_a_damaged_one_until_they_are_newer(tmp_path):
    for version in (2, 4, 6):
        write(tmp_path, version)
    checkpoint_folder.set_aside(tmp_path / "4")
    checkpoint_folder.retain(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "4.damaged", "6"]
    write(tmp_path, 8)
    checkpoint_folder.retain(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["6", "8"]
    checkpoint_folder.retain(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["8"]


def test_a_file_that_the_disk_cannot_read_is_damage_and_one_that_may_not_be_read_is_not(tmp_path, monkeypatch):
    path = write(tmp_path, 2, prompts="", other="")
    (path / "other.jsonl").unlink()
    (path / "other.jsonl").symlink_to("/proc/self/mem")  # its first byte is no memory of a process: EIO
    with pytest.raises(checkpoint_folder.DamagedCheckpoint, match=r"other\.jsonl cannot be read"):
        checkpoint_folder.verify(path, ["other.jsonl"])
    (path / "prompts.jsonl").unlink()
    (path / "prompts.jsonl").symlink_to("/proc/self/clear_refs")  # may only be written
    with pytest.raises(
        checkpoint_folder.UnreadableCheckpoint, match=r"prompts\.jsonl cannot be read .*let the user of this"
    ):
        checkpoint_folder.verify(path, ["prompts.jsonl"])
    (path / "state.json").unlink()
    (path / "state.json").symlink_to("/proc/self/clear_refs")
    with pytest.raises(checkpoint_folder.UnreadableCheckpoint, match=r"state\.json cannot be read .*then start again"):
        checkpoint_folder.read_state(path)
    (path / "state.json").unlink()
    (path / "state.json").symlink_to("/proc/self/mem")
    with pytest.raises(checkpoint_folder.DamagedCheckpoint, match=r"state\.json cannot be read"):
        checkpoint_folder.read_state(path)


@pytest.mark.parametrize(
    "text, expected",
    [
        ('{"version": 1', "cannot be read"),
        ("[]", "cannot be read"),
        ("\x80", "cannot be read"),
        ('{"version": 2, "files": {}, "digest": "0"}', "is not what was written"),
    ],
)
def test_a_state_that_is_not_what_was_written_is_named(tmp_path, text, expected):
    path = write(tmp_path, 2)
    (path / "state.json").write_text(text, encoding="latin-1")
    with pytest.raises(checkpoint_folder.DamagedCheckpoint, match=rf"state\.json {expected}"):
        checkpoint_folder.read_state(path)
