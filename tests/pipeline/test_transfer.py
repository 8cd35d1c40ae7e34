"""How an engine's weights are asked of the trainer, and what happens when it does not send them."""

import threading

import pytest

from pipeline import keys, transfer
from pipeline.coordinator import Coordinator
from pipeline.engine_fleet import EngineFleet
from pipeline.engine_keeper import Publication
from pipeline.ledger_types import Weights
from pipeline.transfer import DONE, Transfer, TransferFailed, answer, ask, take
from pipeline.weights import read_manifest, write_manifest


@pytest.fixture(autouse=True)
def short(monkeypatch, whole_passes):
    monkeypatch.setattr(transfer, "TAKE_S", 0.3)
    monkeypatch.setattr(transfer, "MARGIN_S", 0.1)


@pytest.fixture
def trainer(client, run):
    """trainer(said) takes one transfer and answers `said`, or nothing; .taken are those it took."""
    threads, taken = [], []

    def start(said):
        def work():
            if (found := take(client, run)) is not None:
                taken.append(found)
                if said:
                    answer(client, run, found, said)

        threads.append(threading.Thread(target=work))
        threads[-1].start()

    start.taken = taken
    yield start
    for thread in threads:
        thread.join()


def test_what_is_asked_for_is_taken_and_answered(client, run, trainer):
    trainer(DONE)
    ask(client, run, "http://engine:1", "weights/1-a", "demo:1:abc", 5)
    (asked,) = trainer.taken
    assert asked == Transfer(asked.id, "http://engine:1", "weights/1-a", "demo:1:abc", 5)


def test_without_a_trainer_nobody_is_waited_for_and_nothing_is_left_to_take(client, run):
    with pytest.raises(TransferFailed, match=r"no trainer took it within 0\.3 s"):
        ask(client, run, "http://engine:1", "weights/1-a", "demo:1:abc", 5)
    assert not client.exists(keys.transfers(run))


@pytest.mark.parametrize(("said", "why"), [("no room", "no room"), ("", r"not done within 0\.3 s")])
def test_a_transfer_that_fails_or_takes_too_long_says_so(client, run, trainer, said, why):
    trainer(said)
    with pytest.raises(TransferFailed, match=why):
        ask(client, run, "http://engine:1", "weights/1-a", "demo:1:abc", 0.3)


@pytest.fixture
def weights(tmp_path):
    """versions 0 and 1"""
    found = []
    for version in (0, 1):
        folder = tmp_path / f"weights/{version}"
        folder.mkdir(parents=True)
        manifest = write_manifest(folder, version, range(32), [-1.0 - version] * 31, "float32")
        found.append(Weights(version, f"weights/{version}", manifest.digest, version, 0))
    return found


@pytest.mark.parametrize("policy", ["drain", "interrupt", "retract"])
def test_an_engine_joins_from_disk_and_stands_still_while_the_trainer_sends_the_next_version(
    client, run, weights, scripted_engine, tmp_path, policy
):
    engine = scripted_engine()

    def sent(url, path, label):
        engine.calls.append("transfer")
        engine.label, engine.manifest = label, read_manifest(tmp_path / path)

    ledger = Coordinator.create(client, run, {"batch_size": 2})
    fleet = EngineFleet(ledger, [engine.url], Publication(tmp_path, 5, policy=policy, transfer=sent))
    assert fleet.follow(weights[0]) and engine.loads == [0]
    engine.calls.clear()
    assert fleet.follow(weights[1]) and engine.loads == [0]
    abort = ["abort_request"] if policy == "interrupt" else []
    assert engine.calls == ["continue_generation", *abort, "pause_generation", "transfer", "continue_generation"]


def test_what_the_trainer_cannot_send_is_loaded_from_disk_and_the_ledger_says_why(
    client, run, weights, scripted_engine, tmp_path
):
    engine = scripted_engine()

    def refused(url, path, label):
        raise TransferFailed("no group")

    ledger = Coordinator.create(client, run, {"batch_size": 2})
    fleet = EngineFleet(ledger, [engine.url], Publication(tmp_path, 5, transfer=refused))
    for version in weights:
        assert fleet.follow(version)
    assert engine.loads == [0, 1]
    reasons = [fields.get(b"reason", b"").decode() for _, fields in client.xrange(keys.events(run))]
    assert "version 1, from disk: no group" in reasons


def test_an_engine_that_lies_about_what_it_was_sent_is_caught_and_loaded_from_disk(
    client, run, weights, scripted_engine, tmp_path
):
    engine = scripted_engine()

    def mislabelled(url, path, label):
        engine.label = label  # and its weights are still the old ones

    ledger = Coordinator.create(client, run, {"batch_size": 2})
    fleet = EngineFleet(ledger, [engine.url], Publication(tmp_path, 5, transfer=mislabelled))
    assert fleet.follow(weights[0]) and not fleet.follow(weights[1])
    assert "computes with other weights" in fleet.problems[0]
    fleet.keepers["engine-0"].retry_at = 0
    assert fleet.follow(weights[1]) and engine.loads == [0, 1]
