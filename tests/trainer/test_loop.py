"""The training loop on a real ledger: order, publication, and how it ends."""

import json
import resource

import numpy as np
import pytest

from pipeline import checkpoint_folder, events, keys, trajectory_file, weights
from pipeline.errors import Fenced
from pipeline.ledger_types import batch_digest
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import comparable, last_weights, recorded, train
from trainer import checkpoint
from trainer.batch import TrainingFailed
from trainer.loop import Trainer
from trainer.publish import PublishError


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
    assert [line["publish_bytes"] > 0 for line in lines] == [False, True, True, True], "version 0 was there already"
    assert all(line["publish_seconds"] == line["wait_seconds"]["publish"] > 0 for line in lines)
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
    assert not (config.folder / "trained").exists()


def test_every_trained_batch_is_archived_if_that_is_asked_for(client, run, tmp_path):
    config = make_run(tmp_path, run, archive="true")
    with Producer(client, config):
        train(config, client)
    folder = config.folder / "trained"
    assert sorted(path.name for path in folder.iterdir()) == [f"{version}.bin" for version in range(4)]
    happened = events.newest(client, run, 10_000)
    consumed = {int(e.fields["buffer"]): e.fields["entries"].split() for e in happened if e.kind == "consumed"}
    for line in recorded(config):
        batch, entries = trajectory_file.read(folder / f"{line['version']}.bin"), consumed[line["version"]]
        assert sorted(t.entry for t in batch) == sorted(entries) and batch_digest(entries) == line["batch"]
        assert np.mean([t.reward for t in batch]) == pytest.approx(line["reward"])


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


def test_a_trainer_that_is_stopped_writes_a_checkpoint(client, run, tmp_path, uninterrupted):
    config = make_run(tmp_path, run)
    with Producer(client, config) as producer:
        train(config, client, stop=lambda: int(producer.ledger.fields()["version"]) == 1)
        assert checkpoint_folder.newest(config.folder / "checkpoints").name == "1"
        train(config, client)
    assert last_weights(config) == uninterrupted[1]


def test_a_disk_that_is_full_ends_in_one_message_and_the_run_goes_on_later(client, run, tmp_path, uninterrupted):
    config = make_run(tmp_path, run, checkpoint_every=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fails_at(error, version, step):
        class Full(Trainer):
            def _publish(self, last=False):
                self._fill("weights")
                super()._publish(last)

            def _save(self, **_how):
                self._fill("checkpoints")
                super()._save(wait=True)  # else the weights of an update meanwhile may be what fails

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
        fails_at(checkpoint.CheckpointError, 3, "checkpoints")
        former = checkpoint_folder.newest(config.folder / "checkpoints")
        assert former.name == "2"
        checkpoint_folder.verify(former, checkpoint_folder.read_state(former)["files"])
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
