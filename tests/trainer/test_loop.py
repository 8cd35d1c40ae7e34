"""The training loop on a real ledger: order, resume, publication. A kill is an exception that nothing handles."""

import functools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
import redis

from pipeline import events, keys, weights
from pipeline.audit import audit
from pipeline.errors import Fenced
from pipeline.redis_server import RedisFailed, RedisServer, connect, patient
from tests.trainer.ledger import Producer, make_run
from trainer import checkpoint, loop
from trainer.loop import Trainer
from trainer.publish import PublishError
from trainer.ranks import joined
from trainer.update import TrainingFailed

TIMES = {"time_ms", "seconds", "wait_seconds", "idle_seconds", "step_seconds", "tokens_per_second"}
OF_ONE_RUN = TIMES | {"batch"}  # which names entries, whose ids no other run has


class Killed(BaseException):
    pass


@pytest.fixture
def client(redis_url):
    with connect(redis_url) as client:
        yield client


def train(config, client, stop=lambda: False, kind=Trainer):
    with joined(config.trainer) as ranks:
        trainer = kind(config, client, ranks, stop)
        trainer.run()
        return trainer


def recorded(config):
    return [json.loads(line) for line in (config.folder / "metrics.jsonl").read_text().splitlines()]


def comparable(lines):
    return [{k: v for k, v in line.items() if k not in OF_ONE_RUN} for line in lines]


def last_weights(config):
    (folder,) = (config.folder / "weights").glob(f"{config.run.total_steps}-*")
    weights.verify_files(folder)
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def uninterrupted(redis_url, tmp_path_factory):
    """Metrics and final weights of a run that nothing disturbed."""
    with connect(redis_url) as client:
        config = make_run(tmp_path_factory.mktemp("runs"), "uninterrupted")
        with Producer(client, config):
            train(config, client)
        return comparable(recorded(config)), last_weights(config)


def test_a_run_records_every_update_and_publishes_every_version(client, run, tmp_path):
    config = make_run(tmp_path, run)
    with Producer(client, config) as producer:
        trainer = train(config, client)
    lines = recorded(config)
    assert [line["version"] for line in lines] == [0, 1, 2, 3]
    assert all(line["staleness"] == {"0": 4} and line["trajectories"] == 4 for line in lines)
    assert all(abs(line["advantage_center"]) < 1e-12 for line in lines)
    assert {"loss", "ess", "tis_max", "mismatch_kl", "entropy", "brier", "grad_norm", "lr"} <= lines[0].keys()
    assert [json.loads(f[b"json"]) for _, f in client.xrange(keys.metrics(run))] == lines
    published = producer.ledger.versions()
    assert sorted(published) == [0, 1, 2, 3, 4]
    assert published[0].path == "weights/0"
    for version, found in published.items():
        manifest = weights.verify_files(config.folder / found.path)
        assert manifest.version == version
        assert manifest.digest[:16] == found.digest
        assert len(manifest.probe_tokens) == 32
    assert published[3].path == f"weights/3-{trainer.incarnation}"
    assert producer.ledger.status()["checkpoint"] == 4
    assert sorted(p.name for p in (config.folder / "checkpoints").iterdir()) == ["2", "4"]


class KilledBeforePublication(Trainer):
    """Update 2 is done and recorded; the weights of version 3 are not written."""

    goes_on_at = 2

    def _publish(self, last=False):
        if self.version == 3:
            raise Killed
        super()._publish(last)


class KilledBeforeTheLastPublication(Trainer):
    """Checkpoint 4 is durable and the ledger knows; its weights are not written."""

    goes_on_at = 4

    def _publish(self, last=False):
        if last:
            raise Killed
        super()._publish(last)


class KilledBeforeTheLedgerKnows(Trainer):
    """Weights of version 3 lie on the disk; the ledger was not told."""

    goes_on_at = 2

    def _publish(self, last=False):
        if self.version == 3:
            self.ledger.publish = self._die
        super()._publish(last)

    def _die(self, *_):
        raise Killed


class KilledBeforeACheckpoint(Trainer):
    """Version 2 is published; there is no checkpoint yet."""

    goes_on_at = None

    def _save(self, tell=True):
        if self.version == 2:
            raise Killed
        super()._save(tell)


class KilledBeforeTheLedgerKnowsACheckpoint(Trainer):
    """Version 2 is published and its checkpoint durable; the ledger was not told."""

    goes_on_at = 2

    def _save(self, tell=True):
        self.ledger.checkpoint = self._die
        super()._save(tell)

    def _die(self, *_):
        raise Killed


class KilledWhileItWaits(Trainer):
    """Update 2 is done and published, but in no checkpoint."""

    goes_on_at = 2

    def _next_batch(self):
        if self.version == 3:
            raise Killed
        return super()._next_batch()


KILLED = [
    KilledBeforePublication,
    KilledBeforeTheLastPublication,
    KilledBeforeTheLedgerKnows,
    KilledBeforeACheckpoint,
    KilledBeforeTheLedgerKnowsACheckpoint,
    KilledWhileItWaits,
]


@pytest.mark.parametrize("kind", KILLED)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(client, redis_url, run, tmp_path, uninterrupted, kind):
    config = make_run(tmp_path, run)
    with Producer(client, config) as producer:
        with pytest.raises(Killed):
            train(config, client, kind=kind)
        found = checkpoint.newest(config.folder / "checkpoints")
        assert (found and int(found.name)) == kind.goes_on_at
        before = producer.ledger.versions()
        train(config, client)
    assert (comparable(recorded(config)), last_weights(config)) == uninterrupted
    assert [json.loads(f[b"json"]) for _, f in client.xrange(keys.metrics(run))] == recorded(config)
    after = producer.ledger.versions()
    assert sorted(after) == [0, 1, 2, 3, 4]
    assert all(after[version] == found for version, found in before.items()), "a version was published twice"
    events.archive(client, run, config.folder / "events.jsonl")
    findings = audit(config, redis_url)
    assert findings.clean and findings.checked["trained"] >= 4, "each update was made from its batch, once"


def test_a_trainer_that_is_stopped_writes_a_checkpoint(client, run, tmp_path, uninterrupted):
    config = make_run(tmp_path, run)
    with Producer(client, config) as producer:
        train(config, client, stop=lambda: int(producer.ledger.fields()["version"]) == 1)
        assert checkpoint.newest(config.folder / "checkpoints").name == "1"
        train(config, client)
    assert last_weights(config) == uninterrupted[1]


class Gated(Trainer):
    """Batch 2 is looked for ahead only once `gate` is open; `fetched`: which thread fetched each batch."""

    def _start(self):
        super()._start()
        self.gate, self.fetched, self.fetch, self.peek = threading.Event(), [], self.ledger.fetch, self.ledger.peek
        self.ledger.fetch, self.ledger.peek = self._fetch, self._peek

    def _peek(self, version):
        assert version != 2 or self.gate.wait(60)
        return self.peek(version)

    def _fetch(self, refs):
        found = self.fetch(refs)
        self.fetched.append(threading.current_thread().name.partition("_")[0])
        return found

    def _until_fetched(self, batch):
        self.gate.set()
        wait_until(lambda: len(self.fetched) > batch)
        assert self.fetched[batch] == "prefetch"


class PublishesMeanwhile(Gated):
    def _publish(self, last=False):
        if self.version == 2:
            self._until_fetched(2)
        super()._publish(last)


class SavesMeanwhile(Gated):
    def _save(self, tell=True):
        if self.version == 2:
            self._until_fetched(2)
        super()._save(tell)


@pytest.mark.parametrize("kind", [PublishesMeanwhile, SavesMeanwhile])
def test_the_next_batch_is_fetched_during_publications_and_checkpoints(client, run, tmp_path, uninterrupted, kind):
    config = make_run(tmp_path, run, max_staleness=1)
    with Producer(client, config):
        trainer = train(config, client, kind=kind)
    assert trainer.gate.is_set()
    assert last_weights(config) == uninterrupted[1], "the same batches, whenever they were fetched"
    assert all(
        sum(line["wait_seconds"].values()) + line["step_seconds"] <= line["seconds"] + 1e-3 for line in recorded(config)
    )


class KilledInAnUpdate(Gated):
    """Batch 1 is consumed and not trained on, batch 2 is fetched and packed."""

    def _busy(self, **numbers):
        super()._busy(**numbers)
        if self.version == 1:
            self._until_fetched(2)
            raise Killed


class KilledAfterAnUpdate(Gated):
    """Update 2 is done and not recorded, batch 3 is fetched and packed."""

    def _start(self):
        super()._start()
        self.gate.set()
        self.write, self.record.write = self.record.write, self._write

    def _write(self, version, *arguments):
        if version == 2:
            self._until_fetched(3)
            raise Killed
        return self.write(version, *arguments)


@pytest.mark.parametrize("kind", [KilledInAnUpdate, KilledAfterAnUpdate])
def test_a_batch_that_was_fetched_ahead_is_not_lost_with_the_trainer(
    client, redis_url, run, tmp_path, uninterrupted, kind
):
    config = make_run(tmp_path, run, max_staleness=1)
    with Producer(client, config):
        with pytest.raises(Killed):
            train(config, client, kind=kind)
        train(config, client)
    assert last_weights(config) == uninterrupted[1]
    assert [line["version"] for line in recorded(config)] == [0, 1, 2, 3]
    events.archive(client, run, config.folder / "events.jsonl")
    assert audit(config, redis_url).clean


def test_publication_every_second_update_and_a_last_odd_one(client, run, tmp_path):
    config = make_run(tmp_path, run, every=2, max_staleness=1, total_steps=5)
    with Producer(client, config) as producer:
        train(config, client)
    assert sorted(producer.ledger.versions()) == [0, 2, 4, 5]
    assert [set(line["staleness"]) <= {"0", "1"} for line in recorded(config)] == [True] * 5


def test_minibatches_and_a_finished_run_started_again(client, run, tmp_path):
    config = make_run(tmp_path, run, minibatches=2, total_steps=2)
    with Producer(client, config) as producer:
        train(config, client)
        train(config, client)
    assert len(recorded(config)) == 2
    assert sorted(producer.ledger.versions()) == [0, 1, 2]


def test_a_ledger_that_lost_its_last_writes_goes_on_from_the_trainer(client, run, tmp_path):
    class Loses(Trainer):
        snapshot = None

        def _next_batch(self):
            with producer.quiet:
                ours = [key for key in client.scan_iter(f"hr:{{{run}}}*") if b":process" not in key]
                if self.version == 2 and not self.snapshot:
                    self.snapshot = {key: client.dump(key) for key in ours}
                if self.version == 3 and not lost:
                    lost.append(self.version)
                    client.delete(*ours)
                    for key, value in self.snapshot.items():
                        client.restore(key, 0, value)
            return super()._next_batch()

    lost = []
    config = make_run(tmp_path, run)
    producer = Producer(client, config)
    with producer:
        trainer = train(config, client, kind=Loses)
    assert lost == [3]
    assert [line["version"] for line in recorded(config)] == [0, 1, 2, 3]
    assert sorted(p.name for p in (config.folder / "checkpoints").iterdir()) == ["3", "4"]
    found = producer.ledger.versions()
    assert found[3].path == f"weights/3-{trainer.incarnation}"
    assert weights.verify_files(config.folder / found[4].path).version == 4


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


def test_a_redis_that_stays_away_costs_no_update(run, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "patient", functools.partial(patient, away_s=0.2))
    RedisGoes.server = RedisServer.start(tmp_path / "redis")
    RedisGoes.then = lambda self: None
    config = make_run(tmp_path, run, checkpoint_every=100)
    with impatient(RedisGoes.server.url) as client, Producer(client, config), pytest.raises(RedisFailed):
        train(config, client, kind=RedisGoes)
    assert checkpoint.newest(config.folder / "checkpoints").name == "2"


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


def test_a_disk_that_is_full_ends_in_one_message_and_the_run_goes_on_later(client, run, tmp_path, uninterrupted):
    config = make_run(tmp_path, run)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fails_at(error, version, step):
        class Full(Trainer):
            def _publish(self, last=False):
                self._fill("weights")
                super()._publish(last)

            def _save(self, tell=True):
                self._fill("checkpoints")
                super()._save(tell)

            def _fill(self, written):
                if (written, self.version) == (step, version):
                    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))

        try:
            with pytest.raises(error, match=r"cannot be written .*make room.* goes on from") as raised:
                train(config, client, kind=Full)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "\n" not in str(raised.value)
        assert list((config.folder / step).glob(".*.new")), "this is about drafts that are left"

    with Producer(client, config):
        fails_at(PublishError, 1, "weights")
        fails_at(checkpoint.CheckpointError, 2, "checkpoints")
        train(config, client)
    assert not list(config.folder.glob("*/.*.new"))
    assert (comparable(recorded(config)), last_weights(config)) == uninterrupted


def test_a_second_trainer_fences_the_first(client, run, tmp_path):
    config = make_run(tmp_path, run)

    class Overtaken(Trainer):
        def _next_batch(self):
            if self.version == 1:
                self.ledger.join("another", 0)
            return super()._next_batch()

    with Producer(client, config), pytest.raises(Fenced):
        train(config, client, kind=Overtaken)


def test_waiting_ends_with_what_it_waited_for(client, run, tmp_path):
    config = make_run(tmp_path, run)
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"wait_timeout_s": 1.0})})
    Producer(client, config)  # never started
    with pytest.raises(TrainingFailed, match="buffer 0: 0 of 4 occupied"):
        train(config, client)
    assert b"buffer 0" in client.hget(keys.process(run, "trainer"), "waiting")


def test_sigkill_then_sigterm_of_a_real_trainer_lose_and_repeat_nothing(client, redis_url, run, tmp_path):
    config = make_run(tmp_path, run, total_steps=500, checkpoint_every=500)
    command = [sys.executable, "-W", "error", "-m", "trainer", str(config.folder / "run.toml"), "--redis", redis_url]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with Producer(client, config) as producer:
        process = subprocess.Popen(command, env=environment)
        wait_until(lambda: producer.ledger.weights(2))
        process.kill()
        process.wait()
        killed = producer.ledger.versions()
        process = subprocess.Popen(command, env=environment)
        wait_until(lambda: producer.ledger.weights(max(killed) + 1))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        reached = int(checkpoint.newest(config.folder / "checkpoints").name)
        assert reached > max(killed)
        assert [line["version"] for line in recorded(config)] == list(range(reached))
        more = config.model_copy(update={"run": config.run.model_copy(update={"total_steps": reached + 1})})
        train(more, client)
    assert [line["version"] for line in recorded(config)] == list(range(reached + 1))
    published = producer.ledger.versions()
    assert sorted(published) == list(range(reached + 2))
    assert all(published[version] == found for version, found in killed.items())
    assert published[reached].path != published[reached + 1].path


def wait_until(condition, timeout_s=60):
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def test_settings_are_refused_before_torch_is_imported(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[run]\nname = 1\n")
    done = subprocess.run([sys.executable, "-m", "trainer", str(path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "run.name" in done.stderr


def trainer_command(config, url):
    return [sys.executable, "-m", "trainer", str(config.folder / "run.toml"), "--redis", url]


def test_a_trainer_stopped_while_redis_is_away_ends_with_one_message(run, tmp_path):
    config = make_run(tmp_path, run)
    server = RedisServer.start(tmp_path / "redis")
    with connect(server.url) as client:
        ledger = Producer(client, config).ledger  # never started: the trainer waits
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = trainer_command(config, server.url)
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        wait_until(lambda: ledger.weights(0))
    server.stop()
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Redis has not answered" in stderr
    assert "Traceback" not in stderr


def test_other_settings_than_the_runs_are_refused(client, redis_url, run, tmp_path):
    config = make_run(tmp_path, run)
    Producer(client, config)
    path = config.folder / "run.toml"
    path.write_text(path.read_text().replace("lr = 1e-3", "lr = 1e-4"))
    done = subprocess.run(trainer_command(config, redis_url), capture_output=True, text=True)
    assert done.returncode == 2
    assert f"run {run!r} has settings {config.digest}" in done.stderr and "Traceback" not in done.stderr


def test_another_number_of_ranks_than_the_runs_is_refused(redis_url, run, tmp_path):
    config = make_run(tmp_path, run)
    environment = os.environ | {"WORLD_SIZE": "2", "RANK": "0"}
    done = subprocess.run(trainer_command(config, redis_url), capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "trainer.ranks = 1, but 2 were started" in done.stderr


def test_two_ranks_train_on_batches_of_one_trajectory(client, redis_url, run, tmp_path):
    """The second rank has nothing to compute, and joins every collective."""
    config = make_run(tmp_path, run, ranks=2, batch_size=1, total_steps=2, checkpoint_every=1, max_staleness=1)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = launch + trainer_command(config, redis_url)[1:]
    with Producer(client, config) as producer:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line["trajectories"] for line in recorded(config)] == [1, 1]
    assert sorted(producer.ledger.versions()) == [0, 1, 2]
