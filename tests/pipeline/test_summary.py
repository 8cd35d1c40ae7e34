"""The end of a run in words."""

import json

import pytest

from pipeline import summary
from pipeline.config_file import load
from pipeline.recipe_files import write


@pytest.mark.parametrize(("evaluated", "missing"), [([], True), ([0], True), ([0, 60], False)])
def test_a_last_evaluation_that_never_came_is_said_with_the_log_that_knows_why(tmp_path, evaluated, missing):
    config = load(write("mine", "demo", tmp_path), [f"run.folder={tmp_path}"])
    config.folder.mkdir()
    held_out = [{"version": version, "success": 0.5, "stderr": 0.1} for version in evaluated]
    result = {
        "updates": 60,
        "minutes": 3,
        "held_out": held_out,
        "curves": "c.png",
        "redis": "redis://a:1",
        "commands": [],
    }
    (config.folder / "finished.json").write_text(json.dumps(result))
    text = summary.text(config)
    assert (f"version 60 on held-out problems is missing; {config.folder}/logs/coordinator.log" in text) is missing
