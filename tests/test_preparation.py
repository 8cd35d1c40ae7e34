"""`headrace cold-start` and `headrace values` as a person calls them: a real teacher, real engines, kill -9."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline import jsonl, trajectory_file
from pipeline.config_file import load
from pipeline.run_folder import locked
from pipeline.weights import verify_files
from tests.fixtures_sglang import serve
from tests.shell import Shell, end
from tests.waiting import wait_for

RUN = """
[run]
name = "{name}"
folder = "{folder}/runs"
[model]
path = "{model}"
[data]
path = "{folder}/problems.jsonl"
size = 40
[environment]
name = "{environment}"
max_turns = 1
[rollout]
concurrency = 16
max_tokens = 100
context_length = 256
[advantage]
offline_rollouts = 4
"""
COLD_START = """
[cold_start]
teacher = "{teacher}"
rollouts = 4
temperature = 1.0
top_p = 1.0
top_k = -1
loss = "final"
schedule = "cosine"
warm_up = 2
epochs = 2
batch_size = 8
lr = 1e-4
weight_decay = 0.01
"""


@pytest.fixture
def shell(tmp_path):
    problems = "".join(json.dumps({"question": f"{n} + {n} = ?", "answer": str(2 * n)}) + "\n" for n in range(40))
    (tmp_path / "problems.jsonl").write_text(problems)
    return Shell(tmp_path)


def write_run(shell, name, model, teacher=None):
    environment = f"{Path(__file__).parent}/even_length.py:EvenLength"
    text = RUN.format(name=name, folder=shell.folder, model=model, environment=environment)
    path = shell.folder / f"{name}.toml"
    path.write_text(text + (COLD_START.format(teacher=teacher) if teacher else ""))
    return load(path)


def changed(model, folder, change):
    """A copy of the model, after `change` was made to its embedding `E`, [vocabulary, hidden]; ids: of its tokens."""
    code = f"""if True:
        import json, shutil, sys
        from safetensors.torch import load_file, save_file
        model, folder = sys.argv[1:]
        shutil.copytree(model, folder)
        tensors = load_file(folder + "/model.safetensors")
        E = tensors["model.embed_tokens.weight"]
        tokenizer = json.load(open(folder + "/tokenizer.json"))
        ids = tokenizer["model"]["vocab"] | {{t["content"]: t["id"] for t in tokenizer["added_tokens"]}}
        {change}
        save_file(tensors, folder + "/model.safetensors", metadata={{"format": "pt"}})
    """
    subprocess.run([sys.executable, "-c", code, str(model), str(folder)], check=True)
    return folder


# Embeddings are the head, too: what all inputs have in common makes the end of a turn likely, and ids that no token has
# impossible. It still says anything, but ends within a hundred tokens, mostly.
ENDS_SOON = "E[: len(ids)] += 0.3; E[ids['<|im_end|>']] += 0.03; E[len(ids) :] -= 0.3"


@pytest.fixture
def teacher(tiny_model, tmp_path):
    return changed(tiny_model, tmp_path / "teacher", ENDS_SOON)


def answered(shell, *arguments):
    """What --json answers, and what was told meanwhile."""
    code, out, told = shell.run(*arguments, "--json")
    assert code == 0, told
    return json.loads(out), told


@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_a_teachers_traces_make_version_0_and_what_was_killed_begins_anew(shell, sglang, tiny_model, teacher):
    serve(sglang.url, teacher, "whatever it is called")
    config = write_run(shell, "first", tiny_model, sglang.url)
    killed = shell.start("cold-start", "first.toml")
    record = config.folder / "cold_start.jsonl"
    wait_for(lambda: len(jsonl.read(record)) >= 3, seconds=200)
    killed.kill()
    end(killed)
    wait_for(lambda: not shell.left_over())
    assert not (config.folder / "weights" / "0").exists()
    traces_before = (config.folder / "traces.bin").read_bytes()

    result, told = answered(shell, "cold-start", "first.toml")
    assert (config.folder / "traces.bin").read_bytes() == traces_before, "what is there is not made again"
    assert "of at most" in told and "held out" in told and "level=" not in told
    assert verify_files(config.folder / "weights" / "0").digest.startswith(result["digest"])

    traces, counts = trajectory_file.read(config.folder / "traces.bin"), result["traces"]
    assert counts["episodes"] == 160 == counts["kept"] + sum(counts["not_kept"].values())
    assert counts["kept"] == len(traces) and counts["problems_kept"] == len({t.prompt_id for t in traces})
    assert counts["not_kept"].keys() <= {"wrong", "length", "context", "empty"} and counts["not_kept"]["wrong"] > 0
    for t in traces:
        assert (t.outcome, t.finish_reason) == (1.0, "stop")
        assert [s.engine for s in t.segments] == [sglang.url]
        assert (t.rollout_logprobs[t.loss_mask == 1] < 0).all(), "they were sampled"

    lines = jsonl.read(record)
    train = counts["kept"] - len([t for t in traces if t.prompt_id in held_out(traces)])
    assert len(lines) == int(np.ceil(2 * train / 8)) and lines[-1] == result["fine_tuning"]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    again, _ = answered(shell, "cold-start", "first.toml")
    assert again == result
    assert shell.left_over() == []
    serve(sglang.url, tiny_model)


def held_out(traces):
    prompts = list(dict.fromkeys(t.prompt_id for t in traces))
    return prompts[-round(0.1 * len(prompts)) :]


@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_values_go_on_after_a_kill_and_another_run_takes_them(shell, sglang, tiny_model):
    config = write_run(shell, "first", tiny_model)
    answered(shell, "cold-start", "first.toml")
    killed = shell.start("values", "first.toml", "--engine", sglang.url)
    path = config.folder / "values.jsonl"
    wait_for(lambda: len(jsonl.read(path)) >= 3, seconds=200)
    killed.kill()
    end(killed)
    wait_for(lambda: not shell.left_over())
    before = jsonl.read(path)
    assert 3 <= len(before) < 40, "killed in the middle"

    result, told = answered(shell, "values", "first.toml", "--engine", sglang.url)
    after = jsonl.read(path)
    assert after[: len(before)] == before and len({line["id"] for line in after}) == 40
    assert f"of {40 - len(before)} prompts are scored" in told
    sums = [sum(line["outcomes"]) for line in after]
    assert [row["prompts"] for row in result["histogram"]] == [sums.count(k) for k in range(5)]
    assert (result["none"], result["all"]) == (sums.count(0), sums.count(4))
    assert 0.2 < result["success"] < 0.8

    # the same model, written again by another run: its tensors are the same
    write_run(shell, "second", config.folder / "weights" / "0")
    answered(shell, "cold-start", "second.toml")
    taken, _ = answered(
        shell, "values", "second.toml", f"advantage.values={config.folder}", "--engine", "http://127.0.0.1:9"
    )
    assert taken == result | {"run": "second"}

    other = write_run(shell, "third", changed(tiny_model, shell.folder / "other", "E *= 1.01"))
    answered(shell, "cold-start", "third.toml")
    code, _, err = shell.run("values", "third.toml", f"advantage.values={path}")
    assert code == 2 and "was measured with other weights" in err
    assert not (other.folder / "values.jsonl").exists()
    serve(sglang.url, tiny_model)


@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_a_teacher_that_is_a_folder_is_served_until_its_traces_are_there(shell, tiny_model, teacher):
    config = write_run(shell, "first", tiny_model, teacher)
    code, _, err = shell.run("cold-start", "first.toml", "cold_start.epochs=1", "engines.start_timeout_s=250")
    assert code == 0, err
    assert err.index("SGLang with the teacher") < err.index("traces of the teacher") < err.index("cold start")
    assert (config.folder / "logs" / "teacher-0.log").exists()
    assert shell.left_over() == []


def test_what_cannot_be_is_said_before_anything_starts(shell, tiny_model, sglang_stand_in):
    write_run(shell, "first", tiny_model, "http://127.0.0.1:9")
    code, _, err = shell.run("cold-start", "first.toml")
    assert code == 2 and "no SGLang server answers at http://127.0.0.1:9" in err
    code, _, err = shell.run("up", "first.toml")
    assert code == 2 and "no SGLang server answers at http://127.0.0.1:9" in err
    write_run(shell, "first", tiny_model, "nowhere")
    code, _, err = shell.run("cold-start", "first.toml")
    assert code == 2 and "nowhere: no such folder" in err


def test_a_teacher_of_another_family_is_refused_by_its_folder(shell, tiny_model):
    other = shell.folder / "other"
    other.mkdir()
    for path in tiny_model.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace("<|endoftext|>", "<|begin|>"))
    write_run(shell, "first", tiny_model, other)
    code, _, err = shell.run("cold-start", "first.toml")
    assert code == 2 and "has another tokenizer than" in err and "token 0, '<|" in err


def test_values_before_version_0_and_of_a_run_without_any_are_refused_with_what_to_do(shell, tiny_model):
    write_run(shell, "first", tiny_model)
    code, _, err = shell.run("values", "first.toml", "--engine", "http://127.0.0.1:9")
    assert code == 2 and "`headrace cold-start RUN.toml` makes it" in err
    code, _, err = shell.run("values", "first.toml", "advantage.offline_rollouts=0", "run.name=none")
    assert code == 2 and "advantage.offline_rollouts = 0: this run has no first values" in err


def test_while_the_run_is_up_neither_is_done(shell, tiny_model):
    config = write_run(shell, "first", tiny_model)
    with locked(config.folder):
        for command in ("cold-start", "values"):
            code, _, err = shell.run(command, "first.toml")
            assert code == 1 and "is up already, as process" in err
