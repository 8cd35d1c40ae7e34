"""Supervised fine-tuning against slow oracles: what is trained on, at which rate, and what is held out."""

import math

import numpy as np
import pytest
import torch

from pipeline import jsonl
from pipeline.config_file import load
from pipeline.errors import ConfigError
from tests.trainer.ledger import DEFAULTS, RUN, trajectory
from trainer import model as policy
from trainer.cold_start import make_model
from trainer.fine_tune import ColdStartFailed, batches, final_message, fine_tune, held_out_loss, split


def make_config(folder, **settings):
    lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
    path = folder / "run.toml"
    path.write_text(RUN.format(folder=folder, name="t", **DEFAULTS) + f"\n[cold_start]\n{lines}")
    config = load(path)
    make_model(config)
    return config


def traces_of(prompts, rollouts=2):
    return [trajectory(7 * p + r, prompt_id=f"p{p}") for p in range(prompts) for r in range(rollouts)]


def oracle_loss(model, traces):
    """Token mean of -log p over the mask, one trajectory and one token after another, in float64."""
    total = count = 0
    for t in traces:
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(t.tokens.astype(np.int64))[None]).logits[0].double()
        for place in np.flatnonzero(t.loss_mask):
            total -= torch.log_softmax(logits[place - 1], -1)[t.tokens[place]].item()
            count += 1
    return total / count


def test_the_final_message_is_the_last_run_of_action_tokens():
    t = trajectory(3)
    turns = [(s.start, s.length) for s in t.segments]
    final = final_message(t)
    expected = np.zeros_like(t.loss_mask)
    expected[turns[-1][0] : sum(turns[-1])] = 1
    np.testing.assert_array_equal(final.loss_mask, expected)
    np.testing.assert_array_equal(final.tokens, t.tokens)
    assert final_message(final).action_tokens == turns[-1][1], "of a single message it is that one"


@pytest.mark.parametrize("loss", ["all", "final"])
def test_the_loss_is_that_of_the_oracle_over_the_tokens_asked_for(tmp_path, loss):
    config = make_config(tmp_path, loss=f'"{loss}"', epochs=1, batch_size=64, lr=1e-9, warm_up=0)
    traces = traces_of(prompts=20)
    model = policy.load(config.model_path)
    fine_tune(model, traces, config)
    (line,) = jsonl.read(config.folder / "cold_start.jsonl")
    train, held = split(traces, 0.1)
    masked = {"all": list, "final": lambda traces: [final_message(t) for t in traces]}[loss]
    assert line["loss"] == pytest.approx(oracle_loss(model, masked(train)), rel=1e-5)
    assert line["held_out_loss"] == pytest.approx(oracle_loss(model, masked(held)), rel=1e-5)
    assert oracle_loss(model, train) != pytest.approx(oracle_loss(model, masked(train)), rel=1e-4) or loss == "all"


def test_one_step_changes_the_weights_as_adamw_does_at_the_scheduled_rate_with_weight_decay(tmp_path):
    settings = {"schedule": '"cosine"', "warm_up": 1, "max_steps": 3, "batch_size": 36, "lr": 1e-2, "weight_decay": 0.1}
    config = make_config(tmp_path, **settings)
    traces = traces_of(prompts=20)
    model, expected = policy.load(config.model_path), policy.load(config.model_path)
    fine_tune(model, traces, config)
    optimizer = torch.optim.AdamW(expected.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for rate in (1e-2, 1e-2, 5e-3):  # a batch is the whole set: its order does not matter
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        losses = []
        for t in split(traces, 0.1)[0]:
            tokens = torch.from_numpy(t.tokens.astype(np.int64))
            logits = expected(input_ids=tokens[None]).logits[0]
            mask = torch.from_numpy(t.loss_mask[1:].astype(bool))
            losses.append(torch.nn.functional.cross_entropy(logits[:-1][mask], tokens[1:][mask], reduction="none"))
        torch.cat(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(expected.parameters(), config.optimizer.max_grad_norm)
        optimizer.step()
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=3e-5, rtol=1e-3)


def test_no_prompt_is_on_both_sides_of_the_split_and_the_papers_shares_come_out():
    traces = traces_of(prompts=362, rollouts=3)
    train, held = split(traces, 0.1)
    assert len({t.prompt_id for t in train}) == 326
    assert not {t.prompt_id for t in train} & {t.prompt_id for t in held}
    assert len(train) == 3 * 326 and len(held) == 3 * 36


def test_epochs_show_each_trace_that_often(tmp_path):
    config = make_config(tmp_path, epochs=2, batch_size=16, lr=1e-4)
    model = policy.load(config.model_path)
    fine_tune(model, traces_of(prompts=20), config)  # 36 to train on
    lines = jsonl.read(config.folder / "cold_start.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5], "72 traces, 16 a step"
    assert [line["step"] for line in lines if "held_out_loss" in line] == [3, 5]
    seen = [i for batch, _ in zip(batches(36, 16, seed=3), range(5), strict=False) for i in batch][:72]
    assert sorted(seen) == sorted(2 * list(range(36)))


def test_a_cold_start_that_begins_anew_has_one_record(tmp_path):
    config = make_config(tmp_path, max_steps=2, batch_size=16, lr=1e-4)
    model = policy.load(config.model_path)
    (config.folder / "cold_start.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    fine_tune(model, traces_of(prompts=20), config)
    lines = jsonl.read(config.folder / "cold_start.jsonl")
    assert [line["step"] for line in lines] == [1, 2] and "loss" in lines[0]


def test_without_a_target_it_goes_its_whole_way_and_with_one_it_must_reach_it(tmp_path):
    config = make_config(tmp_path, max_steps=7, batch_size=16, lr=1e-4)
    traces = traces_of(prompts=20)
    fine_tune(policy.load(config.model_path), traces, config)
    assert len(jsonl.read(config.folder / "cold_start.jsonl")) == 7
    model = policy.load(config.model_path)
    aimed = config.model_copy(update={"cold_start": config.cold_start.model_copy(update={"target": 0.5})})
    with pytest.raises(ColdStartFailed, match=r"after 7 steps .* below cold_start\.target = 0\.5"):
        fine_tune(model, traces, aimed)
    chance = held_out_loss(model, split(traces, 0.1)[1], config)[1]
    reached = config.cold_start.model_copy(update={"target": chance / 2})
    fine_tune(policy.load(config.model_path), traces, config.model_copy(update={"cold_start": reached}))
    assert len(jsonl.read(config.folder / "cold_start.jsonl")) == 5, "the first look finds it"


def test_in_bfloat16_the_weights_stay_float32_and_learn(tmp_path):
    config = make_config(tmp_path, epochs=2, batch_size=16, lr=1e-3, warm_up=0)
    config = config.model_copy(update={"model": config.model.model_copy(update={"dtype": "bfloat16"})})
    model = policy.load(config.model_path)
    fine_tune(model, traces_of(prompts=20), config)
    computed = set()
    model.model.layers[0].mlp.register_forward_hook(lambda _module, _given, found: computed.add(found.dtype))
    held_out_loss(model, traces_of(prompts=2), config)
    assert computed == {torch.bfloat16}, "what checks the training needs no more memory than it"
    losses = [line["loss"] for line in jsonl.read(config.folder / "cold_start.jsonl")]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert losses[-1] < losses[0] and all(map(math.isfinite, losses))


def test_traces_of_a_single_problem_are_too_few():
    with pytest.raises(ConfigError, match="traces of 2 problems, found 30 of 1"):
        split(traces_of(prompts=1, rollouts=30), 0.1)
