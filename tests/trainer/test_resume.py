"""Killed at any point and started again, a trainer computes the same; batches that were fetched ahead are not lost."""

import json
import random
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline import checkpoint_folder, events, keys
from pipeline.audit import audit
from pipeline.errors import OtherSchema
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import Killed, comparable, last_weights, recorded, train
from tests.waiting import wait_for
from trainer.loop import Trainer


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

    def _save(self, **how):
        if self.version == 2:
            raise Killed
        super()._save(**how)


class KilledBeforeTheLedgerKnowsACheckpoint(Trainer):
    """Version 2 is published and its checkpoint durable; the ledger was not told."""

    goes_on_at = 2

    def _settle(self, **how):
        self.ledger.checkpoint = self._die
        super()._settle(**how)

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
        found = checkpoint_folder.newest(config.folder / "checkpoints")
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


def test_a_trainer_of_another_headrace_joins_no_run(client, run, tmp_path):
    config = make_run(tmp_path, run)
    producer = Producer(client, config)
    client.hset(keys.run(run), "schema", keys.SCHEMA - 1)
    with pytest.raises(OtherSchema, match="was made by another headrace"):
        train(config, client)
    client.hset(keys.run(run), "schema", keys.SCHEMA)
    assert producer.ledger.fields()["trainer"] == ""


@pytest.mark.parametrize("reference", ["initial", "ewma"])
def test_the_reference_policy_goes_on_from_the_checkpoint(client, run, tmp_path, reference):
    def finished(name, kind):
        loss = f'kl = 0.5\nreference = "{reference}"\n' + "reference_decay = 0.5" * (reference == "ewma")
        config = make_run(tmp_path, name, loss=loss)
        with Producer(client, config):
            if kind is not Trainer:
                with pytest.raises(Killed):
                    train(config, client, kind=kind)
                model = (
                    config.folder / "model" / "model.safetensors"
                )  # which version 0 need not be, and that may be gone
                save_file({name: 2 * tensor for name, tensor in load_file(model).items()}, model, {"format": "pt"})
            train(config, client)
        return comparable(recorded(config)), last_weights(config)

    expected = finished(run, Trainer)
    assert expected[0][-1]["kl"] > 0
    assert finished(f"{run}-killed", KilledWhileItWaits) == expected


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
        wait_for(lambda: len(self.fetched) > batch)
        assert self.fetched[batch] == "prefetch"


class PublishesMeanwhile(Gated):
    def _publish(self, last=False):
        if self.version == 2:
            self._until_fetched(2)
        super()._publish(last)


class SavesMeanwhile(Gated):
    def _save(self, **how):
        if self.version == 2:
            self._until_fetched(2)
        super()._save(**how)


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
        if numbers["update"].startswith("1 on"):
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


def test_training_draws_no_random_number_so_no_generator_is_part_of_a_checkpoint(client, run, tmp_path):
    def generators():
        return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()

    class Looks(Trainer):
        def _next_batch(self):
            found.append(generators())
            return super()._next_batch()

    found = []
    loss = 'kl = 0.1\nrejection = "token"\nrejection_high = 0.5\nentropy = 0.01'
    config = make_run(tmp_path, run, loss=loss, minibatches=2, evidence="receipt")
    with Producer(client, config):
        train(config, client, kind=Looks)
    assert len(found) == 4 and all(state == found[0] for state in [*found, generators()])
