"""A version of a run elsewhere: a folder that Transformers loads, with neither Redis nor the run's own processes."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline import weights
from pipeline.errors import ConfigError
from pipeline.export import export
from pipeline.weights import MANIFEST
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import train


@pytest.fixture
def trained(client, run, tmp_path):
    config = make_run(tmp_path, run, total_steps=2)
    with Producer(client, config):
        return config, train(config, client).updater.model


def exported(config, folder, *options):
    """What the command line answers, in a world without Redis."""
    command = [sys.executable, "-m", "pipeline.cli", "export", str(config.folder), str(folder), "--json", *options]
    environment = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("published", [True, False])
def test_the_newest_version_is_a_folder_that_transformers_loads(trained, tmp_path, published):
    config, model = trained
    if not published:  # as of a checkpoint between two publications
        for path in weights.published(config.folder / "weights"):
            path.rename(tmp_path / path.name)
    folder = tmp_path / "elsewhere" / "model"
    (folder.parent / ".model.new").mkdir(parents=True)  # of one that was killed
    assert exported(config, folder) == {
        "run": config.run.name,
        "version": 2,
        "folder": str(folder),
        "dtype": "float32",
    }
    assert weights.verify_files(folder).version == 2
    loaded, expected = AutoModelForCausalLM.from_pretrained(folder).state_dict(), model.state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(tensor.full_tensor(), loaded[name]) for name, tensor in expected.items())
    assert AutoTokenizer.from_pretrained(folder).decode([65]) == AutoTokenizer.from_pretrained(
        config.model_path
    ).decode([65])
    assert not [path.name for path in folder.parent.iterdir() if path.name != "model"]


def test_weights_that_the_run_deletes_meanwhile_are_told_as_such(trained, tmp_path, monkeypatch):
    config, _ = trained
    half_deleted, other = weights.published(config.folder / "weights")[:2]
    (half_deleted / MANIFEST).write_text("{")
    assert export(str(config.folder), tmp_path / "first", 1)["version"] == 1

    def deletes(source, target, copyfile=shutil.copyfile):
        if other.exists():
            shutil.rmtree(other)
        return copyfile(source, target)

    monkeypatch.setattr(shutil, "copyfile", deletes)
    with pytest.raises(ConfigError, match="has just been deleted: export a newer version"):
        export(str(config.folder), tmp_path / "second", 1)
    assert [path.name for path in tmp_path.iterdir() if "second" in path.name] == []


def test_an_older_version_is_asked_for_and_nothing_is_overwritten(trained, tmp_path):
    config, _ = trained
    assert export(str(config.folder), tmp_path / "first", 1)["version"] == 1
    with pytest.raises(ConfigError, match="would have to be overwritten"):
        export(str(config.folder), tmp_path / "first", 1)
    with pytest.raises(ConfigError, match=r"no version 7 .* of 0, 1, 2$"):
        export(str(config.folder), tmp_path / "seventh", 7)
