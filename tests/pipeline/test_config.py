"""A run's TOML file: what is refused, and in which words."""

import re
from pathlib import Path
from typing import get_args

import pytest

from pipeline import config_sections, config_training
from pipeline.config import Config
from pipeline.config_file import load, to_toml
from pipeline.config_rules import unwise
from pipeline.environment_rules import check_environment
from pipeline.errors import ConfigError

SMALL = """
[run]
name = "small"
[model.tiny]
[data]
tasks.chain_sum = { min_terms = 2 }
"""
GRPO = [
    "advantage.algorithm=grpo",
    "advantage.sampler=shuffle",
    "advantage.offline_rollouts=0",
    "buffers.group_size=4",
    "loss.aggregation=sequence",
]


@pytest.fixture
def toml(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def refusal(path, *overrides) -> str:
    with pytest.raises(ConfigError) as refused:
        load(path, overrides)
    return str(refused.value)


def test_an_unknown_key_is_named_by_its_path_with_the_nearest_known_one(toml):
    assert "buffers.max_stalenes: unknown key; did you mean 'max_staleness'?" in refusal(toml, "buffers.max_stalenes=1")
    assert "buffer: unknown key; did you mean 'buffers'?" in refusal(toml, "buffer.max_staleness=1")
    assert "eval.data.siz: unknown key; did you mean 'size'?" in refusal(toml, "eval.data.siz=1")
    keys = "at_once, bucket_mb, delta, every, policy, transport"
    assert f"publish.xyz: unknown key; known keys: {keys}" in refusal(toml, "publish.xyz=1")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("policy=stop", "publish.policy: input should be 'drain', 'interrupt' or 'retract', found 'stop'"),
        ("transport=nccl", "publish.transport: input should be 'disk' or 'distributed', found 'nccl'"),
        ("transport=[]", "publish.transport: input should be 'disk' or 'distributed', found []"),
        ("at_once=3", "publish.at_once: input should be a valid boolean, unable to interpret input, found 3"),
        ("every=0", "publish.every: input should be greater than 0, found 0"),
        ("every=1.5", "publish.every: input should be a valid integer"),
    ],
)
def test_how_weights_are_published_is_one_of_what_there_is(toml, override, said):
    assert said in refusal(toml, f"publish.{override}")


def test_every_wrong_key_is_reported_at_once_and_with_its_file(toml):
    lines = refusal(toml, "run.nam=1", "loss.clip=1").splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"{toml}: ") for line in lines)


def test_a_value_of_the_wrong_kind_says_what_was_found(toml):
    assert "run.total_steps: input should be greater than 0, found -5" in refusal(toml, "run.total_steps=-5")
    assert "found 'many'" in refusal(toml, "buffers.batch_size=many")
    for name, given, found in (
        ("batch_size", "4.5", "4.5"),
        ("batch_size", "0", "0"),
        ("buffer_capacity", "0", "0"),
        ("max_staleness", "-1", "-1"),
        ("group_size", "[1]", r"\[1\]"),
        ("lease_s", "nan", "nan"),
        ("lease_s", "inf", "inf"),
        ("filter_metric", "best", "'best'"),
        ("proactive", "both", "'both'"),
    ):
        said = refusal(toml, f"buffers.{name}={given}")
        assert re.search(f"{toml}: buffers.{name}.*: (input should|expected) .*found {found}", said), said
    assert "run.name:" in refusal(toml, "run.name='../elsewhere'")


def test_a_missing_section_has_no_default(tmp_path):
    (tmp_path / "empty.toml").write_text("")
    assert "run: missing; it has no default" in refusal(tmp_path / "empty.toml")


def test_files_that_are_missing_or_not_toml_are_named(tmp_path):
    assert "no such file; `headrace init NAME --recipe demo` writes one" in refusal(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("[run\n")
    assert "not valid TOML" in refusal(tmp_path / "broken.toml")
    assert "is a folder" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["publish.every=4", "buffers.max_staleness=2"], "buffers.max_staleness 2 < publish_every - 1 = 3"),
        (["buffers.buffer_capacity=3"], "buffers.buffer_capacity 3 < batch_size 64: raise it"),
        (["buffers.group_size=4", "buffers.group_launch=3"], "buffers.group_launch 3 < group_size 4: raise it"),
        (["buffers.group_size=33"], "rollout.concurrency = 32 is below the 33 episodes of one entry"),
        (["buffers.byte_budget=1000"], "buffers.byte_budget 1000 is less than one buffer needs"),
        (["buffers.buffer_capacity=1025"], "is less than one buffer needs: expected at least 1074790400 bytes"),
        (["buffers.proactive=retry", "buffers.proactive_patience_s=600"], "is not below max_age_s = 600"),
        (
            ["advantage.algorithm=ppo"],
            "advantage.algorithm = 'ppo' is not known; set it to one of: spo++, spo, reinforce",
        ),
        (["advantage.algorithm=rloo"], "those of buffers.group_size = 1 have no other: every advantage would be 0"),
        (["advantage.evidence=receipt", "buffers.group_size=4"], "follows one trajectory a prompt, and buffers.group_"),
        (["advantage.overlong_buffer=2048"], "penalises trajectories of every length up to rollout.context_length"),
        (["environment.episode_timeout_s=700"], "is above buffers.max_age_s = 600"),
        (["environment.tool_timeout_s=60"], "is not below step_timeout_s = 60, which a step's calls share"),
        (
            ["environment.name=singel_turn"],
            "environment.name = 'singel_turn' is not known; did you mean 'single_turn'? expected 'math_tool', ",
        ),
        (["environment.name=chess"], "environment.name = 'chess' is not known; expected 'math_tool', 'math_tir', "),
        (["environment.tool_preload=['os; x']"], "string should match pattern"),
        (
            ["environment.name=reasoning_gym", "data.path=p.jsonl", "data.tasks={}"],
            "scores tasks of reasoning-gym alone; set data.tasks",
        ),
        (["model.path=/models/x"], "two models: model.path and [model.tiny]; keep one"),
        (["model.path=/models/x", "model.gguf=x.gguf"], "three models: model.path and model.gguf and [model.tiny]"),
        (["model.tiny.hidden=130"], "not a multiple of heads"),
        (["cold_start.teacher=['big', 'bigger']"], "expected URLs of servers, or one folder of a model"),
        (["cold_start.teacher=big", "engines.urls=['http://elsewhere']"], "would have to be served here"),
        (["data.path=problems.jsonl"], "set exactly one of data.path"),
        (["eval.data.size=3"], "set exactly one of eval.data.path"),
        (["rollout.max_tokens=4096"], "leaves no room for a prompt"),
        (["trainer.token_budget=100"], "cannot hold one trajectory"),
        (["trainer.minibatches=65"], "is above buffers.batch_size"),
        (["engines.count=0"], "no engine"),
        (["engines.gpus=[0]"], 'engines.device = "cpu"'),
        (["engines.device=cuda", "engines.gpus=[0]", "trainer.gpus=[0]"], "GPUs [0] are given to both"),
        (["engines.device=cuda", "engines.gpus=[0]", "engines.tp=2"], "engines.count × engines.tp = 2 are needed"),
        (["trainer.gpus=[1, 1]", "trainer.ranks=2"], "names a GPU twice"),
        (["trainer.gpus=[1]", "trainer.ranks=2"], "for trainer.ranks = 2"),
        (["publish.transport=distributed", "trainer.gpus=[0]"], "which engines on the CPU"),
        (["loss.rejection=token"], "loss.rejection = 'token' without a bound removes nothing"),
        (["loss.rejection=token", "loss.rejection_low=-1.0"], "rejection_low = -1: k3 is never below 0"),
        (
            ["loss.rejection=sequence", "loss.rejection_high=-1.0"],
            "rejection_high = -1 removes the tokens that trainer",
        ),
        (["loss.rejection=token", "loss.rejection_measure=k1", "loss.rejection_low=1.0"], "bounds must enclose 0"),
        (["optimizer.schedule=cosine"], "optimizer.schedule = 'cosine' needs optimizer.decay_steps"),
        (
            ["optimizer.schedule=linear", "optimizer.decay_steps=9", "optimizer.warm_up=9"],
            "optimizer.warm_up = 9 is not below optimizer.decay_steps = 9",
        ),
        (
            ["environment.name=reasoning_gym", "environment.options.tries=5"],
            "environment.options.tries = 5 is above environment.max_turns = 4",
        ),
    ],
)
def test_impossible_settings_are_refused_with_the_reason(toml, overrides, said):
    assert said in refusal(toml, *overrides)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["eval.every=5"], "eval.every = 5 does nothing, because no [eval.data] says which problems are held out"),
        (["eval.timeout_s=5"], "eval.timeout_s = 5.0 does nothing"),
        (["data.path=p.jsonl", "data.tasks={}", "data.seed=3"], "data.seed = 3 does nothing"),
        (["eval.data.path=p.jsonl", "eval.data.seed=3"], "because the problems come from eval.data.path; remove it"),
        (
            ["environment.name=single_turn", "environment.tool_preload=['sympy']"],
            "because this environment has no tool",
        ),
        (["environment.name=single_turn", "environment.tool_concurrency=4"], "compares answers without a process"),
        (["redis.url=redis://elsewhere", "redis.port=7000"], "because redis.url names a server that runs already"),
        (["engines.urls=['http://elsewhere']", "engines.count=2", "engines.tp=4"], "engines.tp = 4 does nothing"),
        (["buffers.filter_metric=acc"], "buffers.filter_metric = 'acc' does nothing, because a group of one is never"),
        (
            ["buffers.max_consecutive_filtered=9"],
            "buffers.max_consecutive_filtered = 9 does nothing, because buffers",
        ),
        (["buffers.proactive_threshold=2"], "buffers.proactive_threshold = 2 does nothing, because buffers.proactive"),
        (["buffers.proactive_patience_s=2"], "buffers.proactive_patience_s = 2.0 does nothing"),
        (
            ["advantage.offline_rollouts=0", "advantage.values=runs/x"],
            "advantage.values = 'runs/x' does nothing, because advantage.offline_rollouts is 0",
        ),
        (["cold_start.top_k=5"], "because without cold_start.teacher the traces are scripted"),
        (["cold_start.epochs=2", "cold_start.max_steps=5"], "because cold_start.epochs says how long it goes on"),
        (["advantage.evidence=receipt", "advantage.rho=0.9"], "the retention follows from the policy's drift"),
        ([*GRPO, "advantage.rho=0.9"], "neither advantage.algorithm nor advantage.sampler reads a prompt's value"),
        ([*GRPO, "advantage.normalization=token"], "because the algorithm normalizes within groups"),
        (["advantage.overlong_penalty=0.5"], "because advantage.overlong_buffer is 0"),
        (["loss.importance=none", "loss.importance_cap=3.0"], 'because loss.importance is "none"'),
        (["loss.proximal=rollout", "loss.importance_cap=3.0"], "engines' log-probs in the place of the trainer's"),
        (["loss.proximal=rollout", "loss.importance=sequence"], "loss.importance = 'sequence' does nothing"),
        (
            ["loss.proximal=rollout", "loss.rejection=token", "loss.rejection_high=1.0"],
            "loss.rejection = 'token' does nothing",
        ),
        (["loss.rejection_measure=k1"], "loss.rejection_measure = 'k1' does nothing, because loss.rejection is \"none"),
        (["loss.rejection_high=2.0"], "loss.rejection_high = 2.0 does nothing"),
        (["loss.reference=ewma"], "loss.reference = 'ewma' does nothing, because loss.kl is 0"),
        (["loss.kl=0.1", "loss.reference_decay=0.9"], 'because loss.reference is "initial", which stays'),
        (["optimizer.min_lr=0.1"], 'optimizer.min_lr = 0.1 does nothing, because optimizer.schedule is "constant"'),
        (["optimizer.decay_steps=9"], "optimizer.decay_steps = 9 does nothing"),
        (["environment.name=mine.py:Mine", "environment.tool_memory_mb=64"], "environment.tool_memory_mb = 64 does"),
    ],
)
def test_a_setting_that_nothing_would_read_is_refused(toml, overrides, said):
    assert said in refusal(toml, *overrides)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["advantage.algorithm=spo", "loss.dual_clip=10.0", "trainer.minibatches=2"],
            "'spo' with advantage.evidence = 'event': as published it has 'receipt'",
        ),
        (
            ["advantage.algorithm=spo", "advantage.evidence=receipt"],
            "'spo' with loss.dual_clip = 2.0: as published it has 10.0",
        ),
        (["advantage.evidence=receipt"], "'spo++' with advantage.evidence = 'receipt': as published it has 'event'"),
        (
            ["advantage.evidence=receipt", "data.size=9000"],
            "'spo++' with advantage.evidence = 'receipt': as published it has 'event'",
        ),
        (["cold_start.warm_up=400"], "cold_start.warm_up = 400 is not below max_steps = 400"),
        (["optimizer.warm_up=100"], "optimizer.warm_up = 100 is not below run.total_steps = 100"),
        ([*GRPO, "loss.aggregation=token"], "'grpo' with loss.aggregation = 'token': as published it has 'sequence'"),
        ([*GRPO, "advantage.offline_rollouts=4"], "advantage.offline_rollouts = 4: neither 'grpo' nor the sampler"),
        (["data.size=9000"], "data.size = 9000: a prompt is visited every 141 policy events"),
        (["rollout.top_p=0.9"], "rollout.top_p = 0.9, top_k = -1: tokens are sampled from a part"),
        (["loss.clip_low=0.1", "loss.dual_clip=3.0"], "loss.clip_low, dual_clip: with trainer.minibatches = 1"),
        (["loss.ratio=sequence"], "loss.ratio: with trainer.minibatches = 1"),
        (["loss.aggregation=sequence"], "loss.aggregation = 'sequence': the advantages are centred per token"),
    ],
)
def test_unwise_settings_are_allowed_and_told(toml, overrides, said):
    (warning,) = unwise(load(toml, overrides))
    assert said in warning


NUMBERS = [
    f"{name}.{key}"
    for name, section in Config.model_fields.items()
    for kind in [section.annotation, *get_args(section.annotation)]
    if hasattr(kind, "model_fields")
    for key, field in kind.model_fields.items()
    if float in (field.annotation, *get_args(field.annotation))
]


@pytest.mark.parametrize("name", NUMBERS)
def test_no_setting_is_nan_and_few_are_without_bound(toml, name):
    assert name in refusal(toml, f"{name}=nan")
    if name in ("loss.dual_clip", "loss.importance_cap", "optimizer.max_grad_norm"):
        load(toml, [f"{name}=inf"])
    else:
        assert name in refusal(toml, f"{name}=inf")


def test_ordinary_settings_are_not_warned_of(toml):
    assert list(unwise(load(toml))) == []
    assert list(unwise(load(toml, GRPO))) == []
    assert list(unwise(load(toml, ["loss.clip_low=0.1", "trainer.minibatches=2"]))) == []
    assert list(unwise(load(toml, ["loss.dual_clip=inf"]))) == []
    assert list(unwise(load(toml, ["loss.aggregation=sequence", "advantage.normalization=trajectory"]))) == []
    assert list(unwise(load(toml, ["loss.aggregation=constant"]))) == []
    assert list(unwise(load(toml, ["cold_start.warm_up=400", "cold_start.epochs=9"]))) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["environment.name=reasoning_gym", "environment.tool_concurrency=16", "environment.step_timeout_s=4"],
        ["environment.name=single_turn", "environment.options={verify = 'math'}", "environment.tool_concurrency=16"],
    ],
)
def test_verdicts_at_once_are_set_where_there_is_no_tool_and_a_tools_time_binds_nobody(toml, overrides):
    load(toml, overrides)


def test_an_environment_that_this_machine_cannot_open_is_refused_before_anything_starts(toml, tmp_path, monkeypatch):
    own = f"{tmp_path}/mine.py:Mine"
    with pytest.raises(ConfigError, match=f"no file {tmp_path}/mine.py in "):
        check_environment(load(toml, [f"environment.name={own}"]).environment)
    (tmp_path / "mine.py").touch()
    check_environment(load(toml, [f"environment.name={own}"]).environment)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"math_tir judges with math_verify: pip install 'headrace\[math\]'"):
        check_environment(load(toml, ["environment.name=math_tir"]).environment)
    check_environment(load(toml, ["environment.name=single_turn"]).environment)


def test_overrides_are_toml_values_or_bare_words(toml):
    config = load(toml, ["run.seed=7", "engines.device=cpu", "engines.args=['--tp', '1']", "cold_start.target=0.5"])
    assert config.run.seed == 7
    assert config.engines.args == ["--tp", "1"]
    assert config.cold_start.target == 0.5


def test_a_teacher_is_urls_of_servers_or_the_folder_of_a_model(toml):
    served = load(toml, ["cold_start.teacher=['http://a:1/', 'http://b:2']"]).cold_start
    assert (served.teacher_urls, served.teacher_folder) == (["http://a:1", "http://b:2"], None)
    to_serve = load(toml, ["cold_start.teacher=models/big"]).cold_start
    assert (to_serve.teacher_urls, to_serve.teacher_folder) == ([], Path("models/big"))


@pytest.mark.parametrize("override", ["run.seed", "=3", "run..seed=3", "run.name.x=3"])
def test_an_override_that_is_none_is_refused(toml, override):
    assert f"override {override!r}" in refusal(toml, override)


def test_the_resolved_settings_read_back_equal(toml, tmp_path):
    config = load(toml, ["eval.data.tasks.gcd={}", "cold_start.lr=1e-4"])
    (tmp_path / "resolved.toml").write_text(to_toml(config))
    assert load(tmp_path / "resolved.toml") == config


def test_a_setting_that_a_newer_headrace_adds_makes_no_other_run(toml):
    class NewerOptimizer(config_training.Optimizer):
        momentum: float = 0.9

    class NewSection(config_sections.Section):
        on: bool = False

    class Newer(Config):
        optimizer: NewerOptimizer = NewerOptimizer()
        new: NewSection = NewSection()

    values = load(toml).model_dump(mode="json", exclude_none=True)
    assert Newer.model_validate(values).digest == load(toml).digest
    for name, changed in {"optimizer": {"momentum": 0.8}, "new": {"on": True}}.items():
        differs = values | {name: values.get(name, {}) | changed}
        assert Newer.model_validate(differs).digest != load(toml).digest


def test_the_digest_covers_what_processes_share_and_nothing_that_may_differ_between_hosts(toml):
    digest = load(toml).digest
    assert load(toml, ["optimizer.lr=1"]).digest != digest
    assert load(toml, ["buffers.max_staleness=3"]).digest != digest
    assert load(toml, ["publish.every=2"]).digest != digest
    may_differ = [
        "run.folder=/elsewhere",
        "rollout.workers=9",
        "engines.port=3000",
        "engines.args=['--mem-fraction-static', '0.5']",
        "redis.port=7000",
        "run.total_steps=9",
        "advantage.values=runs/x",
        "trainer.checkpoint_every=3",
        "publish.bucket_mb=8",
        "publish.transport=distributed",
        "publish.delta=true",
    ]
    assert load(toml, may_differ).digest == digest
    assert load(toml, ["cold_start={}"]).digest != digest, "a section that is given by being there"
    held_out = load(toml, ["eval.data.path=here.jsonl"]).digest
    assert held_out != digest and held_out == load(toml, ["eval.data.path=there.jsonl"]).digest


def test_differing_settings_are_listed_by_key(toml):
    ours, theirs = load(toml), load(toml, ["optimizer.lr=0.5", "data.tasks.gcd={}", "rollout.workers=3"])
    assert ours.differences(theirs) == ["data.tasks.gcd: None → {}", "optimizer.lr: 1e-06 → 0.5"]
    assert ours.differences(ours) == []


def test_a_config_cannot_be_changed_by_the_rooms_that_read_it(toml):
    with pytest.raises(ValueError, match="frozen"):
        load(toml).run.seed = 3
    assert isinstance(load(toml), Config)
