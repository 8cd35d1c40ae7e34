"""The sections of a run's file, setting by setting: what each may be, and what it is by default.

    here                  the run, its model, problems and environment, its processes and the buffers between them
    config_training.py    what becomes of a buffer: advantage, loss, optimizer, trainer, new weights

config.py puts them together; config_rules.py says which combinations are impossible.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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
    words: bool = Field(
        False,
        description="no token is more than a word, so that a word is the same tokens wherever it stands: for text that "
        "is to be copied, not arithmetic",
    )


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
