"""A checkpoint that is not what was written is found by name, and the run goes on from the one before."""

import json
import logging

import pytest

from pipeline import checkpoint_folder, jsonl, keys
from pipeline.checkpoint_folder import DamagedCheckpoint, UnreadableCheckpoint
from pipeline.errors import MissingBatch
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import Killed, comparable, last_weights, recorded, train
from trainer.loop import Trainer


class KilledAtThree(Trainer):
    """Checkpoints 2 and 3 are durable, and the ledger knows."""

    def _next_batch(self):
        if self.version == 3:
            self._save(wait=True)
            raise Killed
        return super()._next_batch()


def shards_of(path):
    return next(path.glob("*.distcp"))


def truncate(path):
    file = shards_of(path)
    file.write_bytes(file.read_bytes()[:-1])
    return file.name


def flip(path):
    file = shards_of(path)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    return file.name


def lose(path):
    shards_of(path).unlink()
    return "__0_0.distcp is missing"


def cut_state(path):
    file = path / "state.json"
    file.write_bytes(file.read_bytes()[:-9])
    return "state.json cannot be read"


def change_state(path):
    file = path / "state.json"
    state = json.loads(file.read_text())
    file.write_text(json.dumps(state | {"recent": []}))
    return "state.json is not what was written"


def lose_state(path):
    (path / "state.json").unlink()
    return "state.json is missing"


def change_prompts(path):
    file = path / "prompts.jsonl"
    file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
    return "prompts.jsonl is not what was written"


@pytest.mark.parametrize("damage", [truncate, flip, lose, cut_state, change_state, lose_state, change_prompts])
def test_a_damaged_checkpoint_is_named_and_the_one_before_stands_in(
    client, run, tmp_path, uninterrupted, damage, caplog
):
    config = make_run(tmp_path, run, checkpoint_every=1)
    folder = config.folder / "checkpoints"
    with Producer(client, config) as producer:
        with pytest.raises(Killed):
            train(config, client, kind=KilledAtThree)
        assert [path.name for path in checkpoint_folder.all_of(folder)] == ["3", "2"]
        named = damage(folder / "3")
        with caplog.at_level(logging.ERROR):
            train(config, client)
    (said,) = (record.message for record in caplog.records if record.name == "trainer.checkpoint")
    assert named in said and "3.damaged, and the run goes on from checkpoint 2" in said
    assert (comparable(recorded(config)), last_weights(config)) == uninterrupted
    assert sorted(path.name for path in folder.iterdir()) == ["3", "3.damaged", "4"]
    assert producer.ledger.status()["oldest"] == 3


def test_a_checkpoint_of_an_older_headrace_is_refused_and_stays(client, run, tmp_path):
    config = make_run(tmp_path, run, checkpoint_every=1)
    with Producer(client, config):
        with pytest.raises(Killed):
            train(config, client, kind=KilledAtThree)
        file = config.folder / "checkpoints" / "3" / "state.json"
        written = file.read_text()
        file.write_text(json.dumps({k: v for k, v in json.loads(written).items() if k not in ("digest", "files")}))
        with pytest.raises(
            UnreadableCheckpoint, match=r"checkpoints/3 was written by another headrace.*have that one exp"
        ):
            train(config, client)
        assert [path.name for path in checkpoint_folder.all_of(config.folder / "checkpoints")] == ["3", "2"]
        file.write_text(written)
        train(config, client)


def test_where_no_checkpoint_is_whole_the_run_says_what_is_left_to_do(client, run, tmp_path, caplog):
    config = make_run(tmp_path, run, checkpoint_every=1)
    with Producer(client, config):
        with pytest.raises(Killed):
            train(config, client, kind=KilledAtThree)
        for path in checkpoint_folder.all_of(config.folder / "checkpoints"):
            flip(path)
        with pytest.raises(MissingBatch, match=r"begin a new run with weights of this one, as model\.path"):
            train(config, client)
    assert "goes on from version 0" in caplog.text


def test_the_first_checkpoint_may_be_damaged_and_the_run_begins_again(client, run, tmp_path, uninterrupted):
    config = make_run(tmp_path, run, checkpoint_every=3)
    with Producer(client, config):
        with pytest.raises(Killed):
            train(config, client, kind=KilledAtThree)
        flip(config.folder / "checkpoints" / "3")
        train(config, client)
    assert (comparable(recorded(config)), last_weights(config)) == uninterrupted


def test_a_damaged_checkpoint_goes_when_as_many_newer_ones_are_there_as_are_kept(client, run, tmp_path):
    config = make_run(tmp_path, run, checkpoint_every=1, total_steps=6, checkpoints_kept=3)
    with Producer(client, config):
        with pytest.raises(Killed):
            train(config, client, kind=KilledAtThree)
        flip(config.folder / "checkpoints" / "3")
        train(config, client)
    assert sorted(path.name for path in (config.folder / "checkpoints").iterdir()) == ["4", "5", "6"]


def test_evidence_is_never_read_from_a_damaged_file(client, run, tmp_path):
    config = make_run(tmp_path, run)
    with Producer(client, config):
        train(config, client)
    folder = config.folder / "checkpoints"
    of_two = {prompt["id"]: prompt for prompt in jsonl.read(folder / "2" / "prompts.jsonl")}
    change_prompts(folder / "4")
    assert checkpoint_folder.read_prompts(folder) == of_two
    with pytest.raises(DamagedCheckpoint, match=r"prompts\.jsonl"):
        checkpoint_folder.verify(folder / "4", ["prompts.jsonl"])


def test_a_redis_that_was_replaced_gets_the_evidence_that_the_checkpoint_has(client, run, tmp_path):
    config = make_run(tmp_path, run, total_steps=2)
    with Producer(client, config) as producer:
        train(config, client)
    client.delete(*client.scan_iter(f"{keys.run(run)}*"))
    kept = checkpoint_folder.read_prompts(config.folder / "checkpoints")
    assert sum(prompt["visits"] for prompt in kept.values()) == 8, "what is finished when checkpoint 2 is written"
    producer.create(kept.values())
    assert {prompt["id"]: prompt for prompt in producer.ledger.evidence()} == kept
