"""Version 0: model made on the spot, supervised fine-tuning, weights with manifest and probe."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline import trajectory_file, weights
from pipeline.config_file import load
from pipeline.errors import ConfigError, HeadraceError
from pipeline.trajectory import Trajectory
from tests.trainer.ledger import DEFAULTS, RUN
from trainer import cold_start
from trainer import model as policy
from trainer.cold_start import make_model, prepare
from trainer.fine_tune import held_out_loss
from trainer.packing import action_places
from trainer.publish import write_weights

COLD_START = "\n[cold_start]\nproblems = 120\nbatch_size = 16\nlr = 3e-3\ntarget = 0.5\nmax_steps = {max_steps}\n"


def make_folder(folder, max_steps=400):
    (folder / "t").mkdir(parents=True)
    path = folder / "t" / "run.toml"
    path.write_text(RUN.format(folder=folder, name="t", **DEFAULTS) + COLD_START.format(max_steps=max_steps))
    return load(path)


def write_traces(config, count=120):
    """Scripted `a?` -> `<answer>a</answer>`: a copy of one digit, learned in a few dozen steps."""
    tokenizer = AutoTokenizer.from_pretrained(config.model_path)
    traces = []
    for i in range(count):
        prompt = tokenizer.encode(f"<|im_start|>user\n{i % 10} = ?<|im_end|>\n<|im_start|>assistant\n")
        reply = tokenizer.encode(f"<answer>{i % 10}</answer><|im_end|>")
        mask = np.repeat([0, 1], [len(prompt), len(reply)])
        trace = Trajectory(
            prompt_id=f"p{i}",
            entry=f"e{i}",
            version=0,
            event=0,
            value=0.5,
            outcome=1.0,
            tokens=np.array(prompt + reply),
            loss_mask=mask,
            rollout_logprobs=np.zeros(len(mask)),
            segments=[(len(prompt), len(reply), "script", 0)],
        )
        traces.append(trace)
    trajectory_file.write(config.folder / "traces.bin", traces)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    config = make_folder(tmp_path_factory.mktemp("runs"))
    make_model(config)
    assert not (config.folder / "weights").exists()
    write_traces(config)
    prepare(config)
    return config


def test_it_stops_once_a_held_out_trace_has_the_asked_probability(prepared):
    folder = prepared.folder / "weights" / "0"
    manifest = weights.verify_files(folder)
    assert manifest.version == 0
    held = trajectory_file.read(prepared.folder / "traces.bin")[-12:]
    model = policy.load(folder)
    chance = held_out_loss(model, held, prepared)[1]
    assert 0.5 <= chance < 0.98
    expected = []
    for t in held:
        tokens = torch.from_numpy(t.tokens.astype(np.int64))[None]
        with torch.no_grad():
            logprobs = torch.log_softmax(model(input_ids=tokens).logits[0].double(), -1)
        places = action_places(t)
        expected.append(np.exp(sum(logprobs[p - 1, t.tokens[p]].item() for p in places)))
    assert chance == pytest.approx(np.mean(expected), rel=1e-4)


def test_the_manifests_probe_is_what_a_plain_forward_computes(prepared):
    folder = prepared.folder / "weights" / "0"
    manifest = weights.read_manifest(folder)
    tokens = torch.tensor([manifest.probe_tokens])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder)(input_ids=tokens).logits[0, :-1]
    expected = torch.log_softmax(logits, -1).gather(1, tokens[0, 1:, None])[:, 0]
    np.testing.assert_allclose(manifest.probe_logprobs, expected, atol=1e-5)
    assert len(set(manifest.probe_tokens)) > 5


def test_published_weights_hold_tied_embeddings_once_and_the_tokenizer(prepared):
    folder = prepared.folder / "weights" / "0"
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (prepared.model_path / name).read_bytes()
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in folder.iterdir() if path.name != weights.MANIFEST)
    assert [path.name for path in folder.parent.iterdir()] == ["0"], "no draft is left"


def test_weights_are_published_in_the_dtype_asked_for(prepared, tmp_path):
    model = policy.load(prepared.model_path)
    manifest = write_weights(model, tmp_path / "1-x", 1, prepared.model_path, "bfloat16", list(range(32))).manifest
    assert manifest.dtype == "bfloat16"
    assert {t.dtype for t in load_file(tmp_path / "1-x" / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "1-x" / "config.json").read_text())["dtype"] == "bfloat16"
    assert next(model.parameters()).dtype == torch.float32


def test_the_tiny_model_reads_as_far_as_the_run_asks(tmp_path):
    text = RUN.format(folder=tmp_path, name="t", **DEFAULTS)
    for number in ("context_length = 128", "token_budget = 128"):
        text = text.replace(number, number.replace("128", "8192"))
    (tmp_path / "run.toml").write_text(text)
    config = load(tmp_path / "run.toml")
    make_model(config)
    assert json.loads((config.model_path / "config.json").read_text())["max_position_embeddings"] == 8192


def test_gpus_that_are_not_there_are_refused(tmp_path):
    config = make_folder(tmp_path)
    with pytest.raises(ConfigError, match=r"trainer\.gpus = \[0\], but this process sees 0 CUDA GPUs"):
        prepare(config.model_copy(update={"trainer": config.trainer.model_copy(update={"gpus": [0]})}))


def test_a_second_time_nothing_is_done(prepared):
    before = (prepared.folder / "weights" / "0" / "manifest.json").stat().st_mtime_ns
    (prepared.folder / "traces.bin").rename(prepared.folder / "moved")
    prepare(prepared)
    (prepared.folder / "moved").rename(prepared.folder / "traces.bin")
    assert (prepared.folder / "weights" / "0" / "manifest.json").stat().st_mtime_ns == before


def test_too_few_steps_end_it_with_what_was_reached(tmp_path):
    config = make_folder(tmp_path, max_steps=2)
    make_model(config)
    write_traces(config)
    command = [sys.executable, "-W", "error", "-m", "trainer.cold_start", str(config.folder / "run.toml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "after 2 steps" in done.stderr and "lower the target" in done.stderr
    assert not (config.folder / "weights").exists()


def test_traces_that_are_missing_cut_short_or_too_few_are_refused(tmp_path, monkeypatch):
    config = make_folder(tmp_path)
    make_model(config)
    monkeypatch.setattr(cold_start, "TRACES_S", 0.1)
    with pytest.raises(HeadraceError, match=r"traces\.bin: expected within 0\.1 s"):
        prepare(config)
    write_traces(config, count=5)
    with pytest.raises(ConfigError, match="at least 20 traces of 2 problems, found 5"):
        prepare(config)
    path = config.folder / "traces.bin"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ConfigError, match="ends within trajectory 4"):
        prepare(config)
