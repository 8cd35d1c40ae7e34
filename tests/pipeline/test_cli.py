"""The command line, as a person meets it: what it answers, what it refuses, with which exit code."""

import json
import resource
import subprocess
import sys
from pathlib import Path

from pipeline.config_file import load
from pipeline.run_folder import locked, open_folder


def test_help_answers_in_a_blink():
    """In CPU seconds, which other processes on the machine cannot spoil."""
    script = Path(sys.executable).with_name("headrace")
    times = []
    for _ in range(5):
        begun = cpu_seconds_of_children()
        done = subprocess.run([script, "--help"], capture_output=True, text=True, check=True)
        times.append(cpu_seconds_of_children() - begun)
    assert "headrace up demo.toml" in done.stdout
    assert min(times) < 0.3


def cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_init_writes_a_recipe_under_its_new_name_and_never_over_a_file(headrace):
    code, out, _ = headrace("init", "mine", "--recipe", "demo")
    assert code == 0
    assert "mine.toml is written" in out
    assert load("mine.toml").run.name == "mine"
    Path("mine.toml").write_text("# precious")
    code, _, err = headrace("init", "mine", "--recipe", "demo")
    assert (code, Path("mine.toml").read_text()) == (2, "# precious")
    assert "exists already" in err


def test_init_refuses_an_unknown_recipe_and_an_impossible_name(headrace):
    code, _, err = headrace("init", "mine", "--recipe", "nope")
    assert code == 2
    assert "no recipe 'nope'; there are " in err and " demo, " in err
    code, _, err = headrace("init", "two words", "--recipe", "demo")
    assert code == 2
    assert "run.name" in err
    assert not Path("two words.toml").exists()


def test_recipes_are_listed(headrace):
    code, out, _ = headrace("recipes", "--json")
    assert code == 0
    assert "demo" in [row["recipe"] for row in json.loads(out)]


def test_validate_names_an_unknown_key_and_exits_with_2(headrace):
    headrace("init", "mine", "--recipe", "demo")
    assert headrace("validate", "mine.toml")[0] == 0
    code, _, err = headrace("validate", "mine.toml", "buffers.max_stalenes=3")
    assert code == 2
    assert "did you mean 'max_staleness'?" in err
    assert "Traceback" not in err


def test_validate_names_an_environment_whose_file_is_missing(headrace):
    headrace("init", "mine", "--recipe", "demo")
    code, _, err = headrace("validate", "mine.toml", "environment.name=mine.py:Mine")
    assert code == 2 and "no file mine.py in " in err


def test_validate_warns_of_more_prompts_than_evidence_can_follow(headrace):
    headrace("init", "mine", "--recipe", "demo")
    code, out, _ = headrace("validate", "mine.toml", "data.size=9000")
    assert code == 0
    assert "warning: data.size = 9000: a prompt is visited every 141 policy events" in out


def test_wrong_usage_exits_with_2(headrace):
    assert headrace("up")[0] == 2
    assert headrace("nonsense")[0] == 2
    assert headrace("workers", "scale", "-1")[0] == 2


def test_a_second_up_of_the_same_run_is_refused(headrace, sglang_stand_in):
    headrace("init", "mine", "--recipe", "demo")
    with locked(load("mine.toml").folder):
        code, _, err = headrace("up", "mine.toml")
    assert code == 1
    assert "is up already, as process" in err
    assert "headrace down mine" in err


def test_a_run_name_with_other_settings_is_refused_and_the_keys_are_named(headrace, sglang_stand_in):
    headrace("init", "mine", "--recipe", "demo")
    open_folder(load("mine.toml"))
    code, _, err = headrace("up", "mine.toml", "optimizer.lr=1e-3", "rollout.workers=4")
    assert code == 2
    assert f"optimizer.lr: {load('mine.toml').optimizer.lr} → 0.001" in err
    assert "rollout.workers" not in err, "counts of processes may change"
    assert err.rstrip().endswith("or delete the folder, in which nothing has been trained yet")
    Path("runs/mine/metrics.jsonl").write_text('{"version": 0}\n')
    assert headrace("up", "mine.toml", "optimizer.lr=1e-3")[2].rstrip().endswith("or delete the folder")


def test_a_folder_that_is_no_run_is_left_alone(headrace, sglang_stand_in):
    headrace("init", "mine", "--recipe", "demo")
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/thesis.tex").write_text("years of work")
    code, _, err = headrace("up", "mine.toml")
    assert code == 2
    assert "is no run's folder" in err


def test_one_process_alone_never_rewrites_what_up_has_written(headrace):
    headrace("init", "mine", "--recipe", "demo")
    config = load("mine.toml", ["run.total_steps=7"])
    path = open_folder(config, rewrite=True)
    assert open_folder(load("mine.toml")) == path
    assert load(path).run.total_steps == 7
    open_folder(load("mine.toml"), rewrite=True)
    assert load(path).run.total_steps == load("mine.toml").run.total_steps
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["run.toml"]


def test_eval_of_weights_that_are_not_there_lists_those_that_are(headrace):
    headrace("init", "mine", "--recipe", "demo")
    folder = load("mine.toml").folder
    open_folder(load("mine.toml"))
    (folder / "weights" / "12-ab").mkdir(parents=True)
    (folder / "weights" / "12-ab" / "manifest.json").touch()
    code, _, err = headrace("eval", "30", "--run", "mine")
    assert code == 2
    assert "no weights '30' of the run 'mine'; there are 12-ab" in err


def test_doctor_gives_a_fix_for_each_finding(headrace, monkeypatch):
    monkeypatch.setenv("HEADRACE_SGLANG_PYTHON", "/nowhere/python")
    code, out, _ = headrace("doctor", "--json")
    findings = {finding["check"]: finding for finding in json.loads(out)}
    assert code == 1
    assert not findings["sglang"]["ok"]
    assert "make setup" in findings["sglang"]["fix"]
    assert findings["redis"]["ok"]
    assert findings["sandbox"]["ok"], findings["sandbox"]["found"]
    assert "fix: `make setup`" in headrace("doctor")[1]


def test_doctor_tries_what_a_runs_tool_imports(headrace):
    headrace("init", "mine", "--recipe", "demo")
    toml = Path("mine.toml")
    text = toml.read_text()
    assert "[environment]\n" in text
    for module, ok, found in (("json", True, ", with json"), ("no_such_module", False, "No module named")):
        toml.write_text(text.replace("[environment]\n", f'[environment]\ntool_preload = ["{module}"]\n'))
        findings = json.loads(headrace("doctor", "mine.toml", "--json")[1])
        (sandbox,) = [finding for finding in findings if finding["check"] == "sandbox"]
        assert (sandbox["ok"], found in sandbox["found"]) == (ok, True), sandbox
