"""Checkpoints are written while the updates go on, and only what is durable counts."""

import functools
import threading
import time

import pytest

from pipeline import checkpoint_folder
from tests.trainer.forked import alone, ended, full, started, stuck_after
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import Killed, comparable, last_weights, recorded, train
from tests.waiting import wait_for
from trainer import checkpoint
from trainer.loop import Trainer


def newest(config):
    found = checkpoint_folder.newest(config.folder / "checkpoints")
    return found and int(found.name)


def drafts(config):
    return [path.name.partition("-")[0] for path in (config.folder / "checkpoints").glob(".*.new")]


@pytest.fixture
def gate(monkeypatch):
    """Shards are written, but no checkpoint gets its name before this is set."""
    save, gate = checkpoint.dcp.save, threading.Event()

    def gated(*arguments, **options):
        save(*arguments, **options)
        assert gate.wait(60)

    monkeypatch.setattr(checkpoint.dcp, "save", gated)
    return gate


def test_updates_go_on_while_a_checkpoint_is_written_and_the_ledger_learns_of_what_is_durable(
    client, run, tmp_path, gate
):
    seen = {}

    class Looks(Trainer):
        def _next_batch(self):
            if self.version in (4, 5):
                seen[self.version] = newest(config), self.ledger.status()["checkpoint"]
            if self.version == 4:
                time.sleep(0.5)
                gate.set()
                wait_for(lambda: newest(config) == 3)
            return super()._next_batch()

    config = make_run(tmp_path, run, total_steps=6, checkpoint_every=3)
    with Producer(client, config) as producer:
        train(config, client, kind=Looks)
    assert seen == {4: (None, 0), 5: (3, 3)}
    lines = recorded(config)
    assert [line["checkpoint_seconds"] >= 0.5 for line in lines] == [False] * 5 + [True]
    assert newest(config) == producer.ledger.status()["checkpoint"] == 6


def test_a_checkpoint_waits_for_the_one_before(client, run, tmp_path, gate):
    class Opens(Trainer):
        def _save(self, **how):
            if self.version == 2:
                assert newest(config) is None
                threading.Timer(0.5, gate.set).start()
            super()._save(**how)
            if self.version == 2:
                assert newest(config) == self.saved == 1

    config = make_run(tmp_path, run, checkpoint_every=1)
    with Producer(client, config):
        train(config, client, kind=Opens)
    assert recorded(config)[2]["wait_seconds"]["checkpoint"] >= 0.4


def test_who_is_asked_to_stop_waits_for_what_is_being_written(client, run, tmp_path, gate):
    def stop():
        asked = newest(config) is None and bool(drafts(config))
        if asked:
            threading.Timer(0.3, gate.set).start()
        return asked or gate.is_set()

    config = make_run(tmp_path, run, checkpoint_every=2)
    with Producer(client, config) as producer:
        train(config, client, stop=stop)
    assert newest(config) == producer.ledger.status()["checkpoint"] == 2
    assert not drafts(config)


def test_a_trainer_that_dies_while_a_checkpoint_is_written_goes_on_from_the_one_before(
    client, run, tmp_path, uninterrupted, monkeypatch
):
    save = checkpoint.dcp.save

    def killed(*arguments, checkpoint_id, **options):
        save(*arguments, checkpoint_id=checkpoint_id, **options)
        if checkpoint_id.name.startswith(".3-"):
            raise Killed

    config = make_run(tmp_path, run, checkpoint_every=1)
    with Producer(client, config):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(checkpoint.dcp, "save", killed)
            train(config, client)
        assert (newest(config), drafts(config)) == (2, [".3"])
        train(config, client)
    assert not drafts(config)
    assert (comparable(recorded(config)), last_weights(config)) == uninterrupted


@pytest.mark.parametrize("ranks", [1, 2])
def test_sigkill_while_a_checkpoint_is_written_costs_no_more_than_the_updates_since_the_one_before(
    client, redis_url, run, tmp_path, uninterrupted, ranks
):
    config = make_run(tmp_path, run, ranks=ranks, checkpoint_every=1)
    with Producer(client, config) as producer:
        with started(config, redis_url, functools.partial(stuck_after, 1)):
            # checkpoint 2 is stuck, update 2 is made all the same, checkpoint 3 waits
            wait_for(lambda: producer.ledger.weights(3), 120)
            wait_for(lambda: drafts(config) == [".2"])
        assert newest(config) == 1
        before = comparable(recorded(config))
        assert len(before) == 3
        with started(config, redis_url) as processes:
            assert [code for _, code in ended(processes)] == [0] * ranks
    assert not drafts(config)
    assert comparable(recorded(config))[:3] == before, "updates 1 and 2 are made again, and equal"
    if ranks == 1:
        assert (comparable(recorded(config)), last_weights(config)) == uninterrupted


@pytest.mark.parametrize("how", [full, alone])
def test_a_checkpoint_that_one_rank_cannot_write_ends_all_ranks_with_that_message(
    client, redis_url, run, tmp_path, how
):
    config = make_run(tmp_path, run, ranks=2, checkpoint_every=1)
    with Producer(client, config), started(config, redis_url, how) as processes:
        ends = ended(processes)
    assert [code for _, code in ends] == [1, 1]
    said = ends[0][0]  # rank 0 speaks for all
    assert "checkpoints/1 cannot be written" in said and "make room for it" in said
    assert not any("Traceback" in stderr for stderr, _ in ends)
    assert newest(config) is None
