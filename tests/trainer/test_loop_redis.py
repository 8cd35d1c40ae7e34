"""The training loop with a Redis that loses writes, goes away, or is full."""

import threading
import time

import pytest
import redis

from pipeline import checkpoint_folder, weights
from pipeline.redis_client import connect
from pipeline.redis_server import RedisServer
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import comparable, give_up_on_redis, last_weights, recorded, train, trainer_that_loses
from trainer import loop, record
from trainer.loop import Trainer


def test_a_ledger_that_lost_its_last_writes_goes_on_from_the_trainer(client, run, tmp_path):
    config = make_run(tmp_path, run)
    with Producer(client, config) as producer:
        kind = trainer_that_loses(producer, since=2, at=3)
        trainer = train(config, client, kind=kind)
    assert kind.lost == [3]
    assert [line["version"] for line in recorded(config)] == [0, 1, 2, 3]
    assert sorted(p.name for p in (config.folder / "checkpoints").iterdir()) == ["3", "4"]
    found = producer.ledger.versions()
    assert found[3].path == f"weights/3-{trainer.incarnation}"
    assert weights.verify_files(config.folder / found[4].path).version == 4


def test_a_ledger_that_lost_writes_when_the_trainer_was_asked_to_stop_is_no_failure(
    client, run, tmp_path, uninterrupted
):
    config = make_run(tmp_path, run, checkpoint_every=100)
    with Producer(client, config) as producer:
        kind = trainer_that_loses(producer, since=2, at=3)
        train(config, client, stop=lambda: bool(kind.lost), kind=kind)
        assert kind.lost == [3]
        assert checkpoint_folder.newest(config.folder / "checkpoints").name == "3"
        train(config, client)
    assert (comparable(recorded(config)), last_weights(config)) == uninterrupted


def test_a_redis_that_was_emptied_goes_on_from_the_trainer(client, run, tmp_path):
    class Emptied(Trainer):
        def _next_batch(self):
            if self.version == 3 and not emptied:
                emptied.append(self.version)
                producer.quiet.acquire()
                client.delete(*client.scan_iter(f"hr:{{{run}}}*"))
                threading.Timer(0.6, again).start()
            return super()._next_batch()

    def again():
        producer.create()
        producer.quiet.release()

    emptied = []
    config = make_run(tmp_path, run)
    with Producer(client, config) as producer:
        trainer = train(config, client, kind=Emptied)
    assert emptied == [3]
    assert [line["version"] for line in recorded(config)] == [0, 1, 2, 3]
    assert sorted(p.name for p in (config.folder / "checkpoints").iterdir()) == ["3", "4"]
    assert {v: w.path for v, w in producer.ledger.versions().items()} == {
        version: f"weights/{version}-{trainer.incarnation}" for version in (3, 4)
    }


def impatient(url):
    """A client that tries once, so that who waits for Redis is the trainer."""
    return redis.Redis.from_url(url, retry=None)


class RedisGoes(Trainer):
    """Away before update 2."""

    def _next_batch(self):
        if self.version == 2 and self.server.running:
            self.server.stop()
            threading.Thread(target=self.then).start()
        return super()._next_batch()


def test_a_redis_that_is_away_for_a_moment_is_waited_for(run, tmp_path, uninterrupted):
    over = threading.Event()

    class ForAMoment(RedisGoes):
        server = RedisServer.start(tmp_path / "redis")

        def then(self):
            time.sleep(0.5)
            again = RedisServer.start(self.server.folder)
            over.wait(60)  # a server dies with the thread that started it
            again.stop()

    config = make_run(tmp_path, run)
    with impatient(ForAMoment.server.url) as client, Producer(client, config):
        train(config, client, kind=ForAMoment)
    over.set()
    assert not ForAMoment.server.running
    assert (comparable(recorded(config)), last_weights(config)) == uninterrupted


def test_a_redis_that_stays_away_costs_no_update(run, tmp_path):
    RedisGoes.server = RedisServer.start(tmp_path / "redis")
    RedisGoes.then = lambda self: None
    config = make_run(tmp_path, run, checkpoint_every=100)
    with impatient(RedisGoes.server.url) as client, Producer(client, config):
        give_up_on_redis(config, client, RedisGoes, loop)
    assert checkpoint_folder.newest(config.folder / "checkpoints").name == "2"


def test_a_redis_that_goes_before_a_resumed_trainers_first_checkpoint_costs_no_evidence(run, tmp_path):
    class StopsAfterOne(Trainer):
        def _next_batch(self):
            stopped.extend([True] * self.version)
            return super()._next_batch()

    class Goes(RedisGoes):
        server = RedisServer.start(tmp_path / "redis")

        def then(self):
            pass

    stopped, config = [], make_run(tmp_path, run, checkpoint_every=100)
    folder = config.folder / "checkpoints"
    with impatient(Goes.server.url) as client, Producer(client, config):
        train(config, client, stop=lambda: bool(stopped), kind=StopsAfterOne)
        known, event = checkpoint_folder.read_prompts(folder), checkpoint_folder.read_state(folder / "1")["event"]
        give_up_on_redis(config, client, Goes, loop)
    assert known and checkpoint_folder.newest(folder).name == "2"
    assert checkpoint_folder.read_prompts(folder) == known
    assert checkpoint_folder.read_state(folder / "2")["event"] == event


def test_a_redis_that_goes_while_an_update_is_made_costs_no_update(run, tmp_path, uninterrupted):
    class GoesMeanwhile(Trainer):
        def _start(self):
            super()._start()
            self.write, self.record.write = self.record.write, self._write

        def _write(self, version, *arguments):
            if version == 2:
                server.stop()
            return self.write(version, *arguments)

    server = RedisServer.start(tmp_path / "redis")
    config = make_run(tmp_path, run, checkpoint_every=100)
    with impatient(server.url) as client, Producer(client, config):
        give_up_on_redis(config, client, GoesMeanwhile, record)
        assert checkpoint_folder.newest(config.folder / "checkpoints").name == "3"
        server = RedisServer.start(server.folder)
        train(config, client)
    server.stop()
    assert (comparable(recorded(config)), last_weights(config)) == uninterrupted


def test_memory_full_of_batches_that_were_trained_on_is_freed_by_a_checkpoint(client, run, tmp_path):
    config = make_run(tmp_path, run, checkpoint_every=100, byte_budget=6 * 65536)
    with Producer(client, config):
        train(config, client)
    assert len(recorded(config)) == 4


@pytest.mark.parametrize("checkpoint_every", [1, 100])
def test_a_full_redis_is_freed_by_a_checkpoint(run, tmp_path, checkpoint_every):
    server = RedisServer.start(tmp_path / "redis")

    class Filling(Trainer):
        """Redis is full before update 2: of the 60 kB of each trajectory that was trained on."""

        def _next_batch(self):
            with producer.quiet:
                if self.version == 2 and producer.fields:
                    client.config_set("maxmemory", client.info("memory")["used_memory"] - 100_000)
                    producer.fields = {}
            return super()._next_batch()

    config = make_run(tmp_path, run, checkpoint_every=checkpoint_every)
    with connect(server.url) as client, Producer(client, config, finish_reason="x" * 60_000) as producer:
        try:
            train(config, client, kind=Filling)
        finally:
            client.config_set("maxmemory", 0)
            server.stop()
    assert len(recorded(config)) == 4
