"""The scripts for people who look with redis-cli: what they say, on both servers, and that they only read."""

from importlib.resources import files

import pytest
import redis

from pipeline import keys

FOLDER = files("pipeline") / "lua" / "people"


@pytest.fixture
def ask(client, run, request):
    """ask(script, argument…) -> its text: on a real server by EVAL_RO, as the viewer, who may read and nothing else."""
    fake = type(client).__module__.startswith("fakeredis")
    how = client.eval if fake else request.getfixturevalue("redis_users")["viewer"].eval_ro

    def ask(script, *arguments):
        return how((FOLDER / f"{script}.lua").read_text(), 1, keys.run(run), *arguments).decode()

    return ask


def test_all_buffers_are_one_table(new_run, ask):
    d = new_run(batch_size=4, buffer_capacity=5, max_staleness=2)
    d.update()
    d.finish(d.reserve())
    d.reserve()
    lines = ask("buffers").splitlines()
    assert lines[0] == "version 1, next batch 1; a batch takes 4 of 5 places, at most 2 versions late"
    assert [line.split() for line in lines[1:]] == [
        ["buffer", "state", "occupied", "reserved", "due", "over", "min_version"],
        ["0", "CONSUMED", "4", "0", "0", "0", "0"],
        ["1", "PENDING", "1", "0", "0", "0", "1", "<-", "next"],
        ["2", "PENDING", "0", "0", "0", "0", "-"],
        ["3", "PENDING", "0", "1", "1", "0", "-"],
    ]
    assert len({line.index(line.split()[1]) for line in lines[1:]}) == 1, "columns stand below each other"
    d.c.pause("the disk is full")
    assert ask("buffers").splitlines()[1] == "paused: the disk is full"


def test_the_buffers_of_a_run_that_is_not_there_are_one_sentence(ask, run):
    assert ask("buffers") == f"no run hr:{{{run}}} in this Redis"


def test_a_life_is_told_from_its_reservation_to_its_batch(new_run, ask, names):
    d = new_run(batch_size=2, max_staleness=1, prompts=3)
    r = d.reserve()
    d.ms += 1250
    d.finish(r)
    d.fill_head()
    d.ms += 3000
    d.c.consume(names.trainer, 0)
    lines = ask("entry", r.entry[:10]).splitlines()
    assert lines[0] == f"entry {r.entry}"
    assert lines[1].split(maxsplit=2)[1:] == [
        "reserved",
        f"by w0-a at e0, of prompt {r.prompt} at value 0.50, under version 0: due in buffer 1",
    ]
    assert lines[2] == "00:16:41.250    +1.250 s  placed    in buffer 0; its oldest segment is of version 0"
    assert lines[3] == "00:16:44.250    +3.000 s  consumed  by the trainer, as number 1 of batch 0"
    assert lines[4] == "now: CONSUMED, attempt 1, staleness 0"
    assert lines[5].startswith("trajectories: ") and lines[5].endswith(":trajectories:w0-a")


def test_a_life_that_was_given_back_says_why(new_run, ask):
    d = new_run()
    r = d.reserve()
    d.c.release(r.entry, "failed", "the tool did not answer")
    lines = ask("entry", r.entry).splitlines()
    assert lines[2].endswith("released  failed the tool did not answer") and lines[3] == "now: RELEASED, attempt 1"


def test_without_an_entry_the_one_placed_last_is_told(new_run, ask):
    d = new_run()
    assert "no entry has been placed" in ask("entry")
    first, second = d.reserve(), d.reserve()
    d.finish(second)
    d.finish(first)
    assert ask("entry").startswith(f"entry {first.entry}")
    assert "no entry that begins with zzz" in ask("entry", "zzz")


def test_an_entry_that_a_checkpoint_has_is_told_from_its_events(new_run, ask, names):
    d = new_run(batch_size=1, max_staleness=1)
    batch = d.update()
    d.update()
    d.update()
    d.c.checkpoint(names.trainer, 2)
    d.c.checkpoint(names.trainer, 3)  # two checkpoints are kept, and what lies between them
    assert ask("entry", batch.refs[0].entry).splitlines()[-1].startswith("now: forgotten")


def test_of_more_events_than_are_read_at_once_none_is_missed(new_run, ask, client, run):
    d = new_run()
    r = d.reserve()
    with client.pipeline() as pipe:
        for _ in range(2500):
            pipe.xadd(keys.events(run), {"kind": "paused", "ms": 1, "reason": "noise"})
        pipe.execute()
    d.finish(r)
    assert [line.split()[1] for line in ask("entry", r.entry).splitlines()[1:2]] == ["reserved"]
    assert " placed " in ask("entry", r.entry)


@pytest.mark.parametrize("script", ["buffers", "entry"])
def test_they_only_read(redis_url, script):
    text = (FOLDER / f"{script}.lua").read_text()
    with redis.Redis.from_url(redis_url) as client, pytest.raises(redis.ResponseError, match="not allowed"):
        client.eval_ro("redis.call('SET', KEYS[1], 1)\n" + text, 1, "x")
