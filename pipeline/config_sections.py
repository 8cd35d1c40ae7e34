"""The sections of a run's file, setting by setting: what each may be, and what it is by default.

config.py puts them together; config_rules.py says which combinations are impossible.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"  # of a run, a folder and a key of Redis


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Run(Section):
    name: str = Field(pattern=NAME)
    folder: Path = Path("runs")
    seed: int = 1
    total_steps: int = Field(100, gt=0, description="optimizer updates")
    parent: str | None = Field(None, description="the checkpoint that it was forked from: headrace fork writes this")


class TinyModel(Section):
    """A Qwen3-style model and tokenizer made on the spot, for a machine without a model hub."""

    layers: int = Field(2, gt=0)
    hidden: int = Field(128, gt=0)
    heads: int = Field(4, gt=0)
    vocabulary: int = Field(384, ge=300)


class Model(Section):
    path: Path | None = Field(None, description="a Hugging Face folder; else gguf, or [model.tiny], which is made")
    gguf: str | None = Field(
        None,
        description='"path/to/file.gguf", or "package:file.gguf" of an installed Python package; becomes a folder once',
    )
    dtype: Literal["float32", "bfloat16"] = "float32"
    tiny: TinyModel | None = None


class Data(Section):
    """Where problems come from: a file or data set, or reasoning-gym tasks (name -> its parameters)."""

    path: Path | None = Field(
        None,
        description='JSON lines, .parquet, or a Hugging Face data set: a folder, or "hf:org/name[:config]"; '
        '"…@split" names its split',
    )
    tasks: dict[str, dict[str, Any]] = {}
    size: int = Field(128, gt=0, description="problems; all rows of a file if it has fewer")
    seed: int = 0


class Environment(Section):
    name: str = Field("math_tool", description='of a built-in one, "path/to/file.py:Class" or "module:Class"')
    options: dict[str, Any] = {}
    max_turns: int = Field(4, gt=0)
    setup_timeout_s: float = Field(30, gt=0, description="of `reset`")
    step_timeout_s: float = Field(60, gt=0, description="of one `step`, with the tools that it calls")
    tool_timeout_s: float = Field(5, gt=0)
    tool_memory_mb: int = Field(256, gt=0)
    tool_output_bytes: int = Field(2048, gt=0)
    tool_concurrency: int = Field(2, gt=0, description="calls of the tool at once in one worker, and verdicts beside")
    tool_preload: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")]] = Field(
        [], description="modules outside the standard library that the Python tool's code may import, such as sympy"
    )
    episode_timeout_s: float = Field(120, gt=0, description="not counting the time without any engine")
    allow_unconfined: bool = Field(False, description="run tools without a sandbox where the kernel offers none")


class Rollout(Section):
    workers: int = Field(1, gt=0)
    concurrency: int = Field(32, gt=0, description="episodes at once in one worker")
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = -1
    max_tokens: int = Field(256, gt=0, description="generated tokens a turn")
    context_length: int = Field(2048, gt=0, description="tokens of a whole trajectory")
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="a reply ends at any of these strings, as at the end token"
    )
    routing: Literal["least_loaded", "sticky"] = Field(
        "least_loaded", description="sticky: one engine for all turns of a group, for its prefix cache"
    )
    request_timeout_s: float = Field(120, gt=0, description="of one request to an engine")
    grace_s: float = Field(10, ge=0, description="how long SIGTERM lets episodes finish")


class Engines(Section):
    """SGLang servers: `count` of them started here, or `urls` of servers that run already."""

    count: int = Field(1, ge=0)
    urls: list[str] = []
    device: Literal["cpu", "cuda"] = "cpu"
    gpus: list[int] = Field([], description="shared out among the engines, tp each")
    tp: int = Field(1, gt=0)
    port: int = Field(0, ge=0, lt=65536, description="of the first engine; 0 takes free ones")
    python: Path | None = Field(None, description="interpreter that has sglang; default .venv-sglang/bin/python")
    args: list[str] = Field([], description="further arguments of sglang.launch_server")
    threads: int = Field(1, gt=0, description="OMP_NUM_THREADS; 1 is fastest for tiny models")
    start_timeout_s: float = Field(300, gt=0)
    load_timeout_s: float = Field(120, gt=0)
    probe_tolerance: float | None = Field(None, gt=0, description="nats; default 1e-3 in float32, 1 in bfloat16")


class Buffers(Section):
    """The staleness ledger (design: Reserve / Occupy / Consume)."""

    max_staleness: int = Field(2, ge=0, description="η: updates between the policy that began a sample and its use")
    batch_size: int = Field(64, gt=0, description="B: entries of one update")
    buffer_capacity: int | None = Field(None, gt=0, description="B' >= B; default B")
    group_size: int = Field(1, gt=0, description="N: trajectories an entry needs")
    group_launch: int | None = Field(None, gt=0, description="N' >= N; default N")
    max_trajectory_bytes: int = Field(1 << 20, gt=0)
    byte_budget: int = Field(1 << 30, gt=0, description="bytes of payload that may be stored or in flight")
    lease_s: float = Field(15, gt=0)
    max_age_s: float = Field(600, gt=0, description="an entry in flight for longer is released")
    max_attempts: int = Field(3, gt=0)
    max_lost: int = Field(10, gt=0)
    max_consecutive_failures: int = Field(100, gt=0)
    filter_metric: Literal["score", "acc", "seq_reward", "seq_final_reward"] | None = Field(
        None, description="dynamic sampling: groups in which all members have the same one are filtered"
    )
    proactive: Literal["retry", "truncate"] | None = Field(
        None, description="what is done with the last few that the trainer waits for"
    )
    proactive_threshold: int = Field(4, gt=0, description="how many are few")
    proactive_patience_s: float = Field(30, gt=0, description="how long they may take")
    max_consecutive_filtered: int = Field(1000, gt=0)


class Advantage(Section):
    algorithm: str = "spo++"
    normalization: Literal["token", "trajectory", "none"] | None = Field(None, description="default: the algorithm's")
    rho: float = Field(0.875, gt=0, le=1, description="retention of evidence per policy event")
    sampler: Literal["uncertainty", "shuffle"] = "uncertainty"
    offline_rollouts: int = Field(8, ge=0, description="a prompt, before training, for its first value")
    mass: float = Field(8.0, gt=0, description="weight of the offline evidence")
    values: Path | None = Field(
        None, description="another run's folder, or its values.jsonl: its offline rollouts are taken, none are made"
    )
    evidence: Literal["event", "receipt"] = Field(
        "event",
        description="when an outcome counts: as soon as it is there, at its policy event, or (SPO) once it was trained "
        "on, in that order, with a retention from the policy's drift",
    )
    overlong_buffer: int = Field(
        0, ge=0, description="the last so many tokens before rollout.context_length are penalised (DAPO); 0: none is"
    )
    overlong_penalty: float = Field(
        1.0, gt=0, description="taken from the reward at the full length, linearly less before"
    )


class Loss(Section):
    """PPO's objective and its variants; trainer/loss.py has the formulas."""

    ratio: Literal["token", "sequence"] = Field("token", description="sequence: one a trajectory, of its mean (GSPO)")
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)
    dual_clip: float = Field(2.0, gt=1, allow_inf_nan=True, description="of negative advantages; inf: none")
    aggregation: Literal["token", "sequence", "constant"] = Field(
        "token",
        description="mean over all tokens; mean over trajectories of their token means; sum over trajectories and "
        "rollout.context_length (Dr. GRPO)",
    )
    proximal: Literal["recompute", "rollout"] = "recompute"
    importance: Literal["token", "sequence", "none"] = Field("token", description="rollout correction (TIS)")
    importance_cap: float = Field(2.0, ge=1, allow_inf_nan=True, description="inf: none")
    rejection: Literal["none", "token", "sequence"] = Field(
        "none", description="leave out tokens, or trajectories by their mean, that trainer and engine disagree about"
    )
    rejection_measure: Literal["k1", "k2", "k3"] = Field("k3", description="estimator of KL(engine ‖ trainer), in nats")
    rejection_low: float | None = Field(None, description="of k1")
    rejection_high: float | None = None
    kl: float = Field(0.0, ge=0, description="weight of KL(policy ‖ reference), k3")
    reference: Literal["initial", "ewma"] = Field(
        "initial", description="ewma: it follows the policy, update by update"
    )
    reference_decay: float = Field(0.99, gt=0, lt=1, description="what the EWMA keeps of itself")
    entropy: float = Field(0.0, ge=0, description="weight of the entropy bonus")


class Optimizer(Section):
    lr: float = Field(1e-6, ge=0)
    weight_decay: float = Field(0.1, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    max_grad_norm: float = Field(1.0, gt=0, allow_inf_nan=True, description="inf: any")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="of lr, after `warm_up`")
    warm_up: int = Field(0, ge=0, description="updates in which lr rises from 0")
    decay_steps: int | None = Field(None, gt=0, description="updates, warm_up among them, until lr is at its lowest")
    min_lr: float = Field(0.0, ge=0, le=1, description="the lowest, as a share of lr")


class Trainer(Section):
    ranks: int = Field(1, gt=0, description="processes, on all nodes together")
    gpus: list[int] = Field([], description="of each node, one rank each; empty trains on the CPU over gloo")
    share_gpus: bool = Field(False, description="engines may have the same GPUs, with engines.args that leave it room")
    nodes: int = Field(1, gt=0, description="machines that the ranks are spread over, all with the run's folder")
    rendezvous: str | None = Field(
        None, pattern=r"^[^:\s]+:\d+$", description='"HOST:PORT" of the first node, where all of them meet'
    )
    max_restarts: int = Field(3, ge=0, description="of all ranks, by torchrun, once one has died")
    replicas: int = Field(
        1, gt=0, description="whole copies of the model; each is sharded over ranks / replicas ranks (HSDP)"
    )
    offload: bool = Field(False, description="parameters, gradients and optimizer state wait in the CPU's memory")
    gather_every: Literal["step", "micro_batch"] = Field(
        "step",
        description="how often weights are gathered and gradients reduced; once a step needs 6 bytes a parameter more",
    )
    threads: int = Field(1, gt=0, description="CPU threads a rank")
    token_budget: int = Field(8192, gt=0, description="tokens of one packed micro-batch")
    activation_checkpointing: bool = Field(
        False, description="recompute each layer in the backward pass: less memory, a third more time"
    )
    minibatches: int = Field(1, gt=0, description="optimizer steps an update")
    max_skipped: int = Field(
        3, ge=0, description="optimizer steps in a row that may be left out because a gradient is not finite"
    )
    mismatch_alarm: float = Field(
        0.1, gt=0, description="nats a token, KL(engine ‖ trainer), from which the trainer warns"
    )
    checkpoint_every: int = Field(10, gt=0, description="updates")
    checkpoints_kept: int = Field(
        2, gt=0, description="the newest so many; the one before stands in for a newest one that is damaged"
    )
    wait_timeout_s: float = Field(600, gt=0, description="for a READY buffer, before the trainer gives up")
    archive: bool = Field(
        False, description="keep every trained batch as {run folder}/trained/<version>.bin: 9 bytes a token, for ever"
    )


class ColdStart(Section):
    """Supervised fine-tuning before RL, on verifier-positive traces of a script (`demonstrate`) or of a teacher."""

    problems: int = Field(1024, gt=0)
    teacher: Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)] = Field(
        [], description="URLs of SGLang servers that serve it, or its folder: it is served for the time being"
    )
    rollouts: int = Field(8, gt=0, description="of the teacher, a problem")
    temperature: float = Field(0.6, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    top_k: int = 20
    loss: Literal["all", "final"] = Field("all", description="on all messages of the assistant, or the final one alone")
    held_out: float = Field(0.1, gt=0, lt=1, description="share of the problems whose traces are not trained on")
    batch_size: int = Field(64, gt=0)
    lr: float = Field(1e-3, gt=0)
    schedule: Literal["constant", "cosine"] = Field("constant", description="of lr, after `warm_up` steps")
    warm_up: int = Field(10, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    epochs: int | None = Field(None, gt=0, description="else max_steps")
    max_steps: int = Field(400, gt=0)
    failures: bool = Field(
        False, description="train on traces that are whole and earned less than all, too: habits for RL to unlearn"
    )
    target: float | None = Field(
        None, gt=0, lt=1, description="probability of a held-out trace at which it stops; not to reach it is a failure"
    )

    @property
    def teacher_urls(self) -> list[str]:
        return [given.rstrip("/") for given in self.teacher if is_url(given)]

    @property
    def teacher_folder(self) -> Path | None:
        """Of a teacher that is to be served."""
        return next((Path(given) for given in self.teacher if not is_url(given)), None)


class Publish(Section):
    every: int = Field(1, gt=0, description="P: updates per publication")
    policy: Literal["drain", "interrupt", "retract"] = Field(
        "drain",
        description="what an engine's running requests do: finish first, stop with what they have, or go on under the "
        "new weights",
    )
    at_once: bool = Field(
        True,
        description="all engines together, each as soon as it may stop; else one after another, so that some engine "
        "always generates",
    )
    transport: Literal["disk", "distributed"] = Field(
        "disk", description="distributed: the trainer broadcasts, over NCCL or gloo; disk all the same where it cannot"
    )
    bucket_mb: int = Field(
        512, gt=0, description="MiB that a rank holds beyond its shard while weights are gathered, written and sent"
    )
    delta: bool = Field(
        False,
        description="files whose tensors have not changed are hard links to the former version's, and broadcasts leave "
        "them out: for frozen layers",
    )


class Eval(Section):
    data: Data | None = None
    every: int = Field(10, gt=0, description="updates; version 0 and the last one always")
    n: int = Field(4, gt=0, description="samples a problem")
    temperature: float = Field(1.0, ge=0)
    timeout_s: float = Field(300, gt=0)


class Redis(Section):
    url: str | None = Field(
        None, description="of a server that runs already; --redis and REDIS_URL come before it, an embedded one after"
    )
    port: int = Field(0, ge=0, lt=65536, description="of the embedded server; 0 takes a free one")


class Metrics(Section):
    """What each process of the run serves for Prometheus, at /metrics."""

    port: int | None = Field(
        None,
        ge=0,
        lt=65536,
        description="of every process; 0: free ones, named in {run.folder}/.prometheus/*.json; not set: none is served",
    )
    host: str = Field("127.0.0.1", description="the address that it is served on; 0.0.0.0: all of this machine")


class Log(Section):
    """How the processes of the run write their logs: one line an event."""

    format: Literal["text", "json"] = Field("text", description="text: key=value, as logfmt has it")


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))
