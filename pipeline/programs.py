"""The command line and the environment of every process of a run.

    coordinator ×1 · worker-0 … worker-N · trainer ×1 (torchrun, when it has several ranks)      run together
    cold-start + traces → values                                                                run once, before

All are given the resolved run.toml and the address of Redis in REDIS_URL, log to {run folder}/logs/{name}.log and see
only the GPUs that are theirs. PYTHONSAFEPATH keeps a user's own trainer.py in this folder from being taken for ours.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline import die_with_parent
from pipeline.config import Config
from pipeline.supervisor import Program

PYTHON = [sys.executable, "-u"]
TRAINER_GRACE_S = 600  # SIGTERM: it finishes its update and writes a checkpoint, which takes a large model minutes


def environment(threads: int = 1, gpus: Sequence[int] = (), redis_url: str | None = None) -> dict[str, str]:
    """What a process of ours needs in its environment, on top of what the launcher has itself."""
    variables = {
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
    }
    return variables | ({"REDIS_URL": redis_url} if redis_url else {})


def module(
    config: Config, name: str, *arguments: str | Path, redis_url: str | None = None, grace_s: float = 10
) -> Program:
    """`python -m arguments…` as a process of the run."""
    argv = [*PYTHON, "-m", *map(str, arguments)]
    return Program(name, argv, log_of(config, name), environment(redis_url=redis_url), grace_s)


def traces(config: Config, teacher_urls: Sequence[str] = ()) -> Program:
    """Waits for the model's tokenizer; then writes traces.bin. teacher_urls: of one that is served for it alone."""
    return module(config, "traces", "workers.traces", run_toml(config), *engine_arguments(teacher_urls))


def cold_start(config: Config) -> Program:
    """Makes the model; then waits for the traces, fine-tunes on one of the trainer's GPUs and writes version 0."""
    argv = [*PYTHON, "-m", "trainer.cold_start", str(run_toml(config))]
    variables = environment(config.trainer.threads, config.trainer.gpus[:1])
    return Program("cold-start", argv, log_of(config, "cold-start"), variables)


def values(config: Config, engine_urls: Sequence[str]) -> Program:
    return module(config, "values", "workers.evaluate", "values", run_toml(config), *engine_arguments(engine_urls))


def export(config: Config, version: int, folder: Path, dtype: str) -> Program:
    """Writes `folder` from a checkpoint, on the CPU."""
    argv = [*PYTHON, "-m", "trainer.export", str(run_toml(config)), str(version), str(folder), "--dtype", dtype]
    return Program("export", argv, log_of(config, "export"), environment(config.trainer.threads))


def log_of(config: Config, name: str) -> Path:
    return config.folder / "logs" / f"{name}.log"


def run_toml(config: Config) -> Path:
    return config.folder / "run.toml"


def coordinator(config: Config, redis_url: str, engine_urls: Sequence[str]) -> Program:
    engines = engine_arguments(engine_urls)
    return module(config, "coordinator", "pipeline.cli", "coordinator", run_toml(config), *engines, redis_url=redis_url)


def engine_arguments(urls: Sequence[str]) -> list[str]:
    return [argument for url in urls for argument in ("--engine", url)]


def worker(config: Config, name: str, redis_url: str) -> Program:
    # after rollout.grace_s the worker releases what is left, which takes it a moment
    grace_s = config.rollout.grace_s + 5
    return module(config, name, "workers", run_toml(config), "--name", name, redis_url=redis_url, grace_s=grace_s)


def trainer(config: Config, redis_url: str) -> Program:
    # who supervises starts a trainer of one node again; no other node's torchrun would notice
    restarts = config.trainer.max_restarts if config.trainer.nodes > 1 else 0
    argv = trainer_argv(config, restarts)
    variables = trainer_environment(config, redis_url)
    return Program("trainer", argv, log_of(config, "trainer"), variables, TRAINER_GRACE_S)


def trainer_environment(config: Config, redis_url: str | None = None) -> dict[str, str]:
    # With one store for all restarts, ranks of a node that did not fail find the addresses of those that have died.
    fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return environment(config.trainer.threads, config.trainer.gpus, redis_url) | fresh


def trainer_argv(config: Config, restarts: int) -> list[str]:
    """One rank is an ordinary process; torchrun, which costs a second import of torch, starts several.

    restarts: how often torchrun starts all ranks again, on all nodes, because one has died.
    """
    trainer = config.trainer
    rank = [*PYTHON, "-m", "trainer", str(run_toml(config))]
    if trainer.ranks == 1:
        return rank
    torchrun = [*PYTHON, "-m", "torch.distributed.run", *_meeting(config)]
    torchrun += ["--nproc-per-node", str(trainer.ranks // trainer.nodes), "--max-restarts", str(restarts)]
    torchrun += ["--shutdown-timeout", str(TRAINER_GRACE_S)]  # after a SIGTERM; its default of 30 s ends in SIGKILL
    # torchrun puts each rank into a session of its own, out of reach of a signal to our group
    guard = ["--no-python", sys.executable, "-S", "-E", die_with_parent.__file__, "0"]
    return [*torchrun, *guard, *rank]


def _meeting(config: Config) -> list[str]:
    """Where the torchruns of all nodes meet. Who is rank 0 they settle there; the run's folder is the same for all."""
    nodes, place = config.trainer.nodes, config.trainer.rendezvous
    if nodes == 1:
        return ["--standalone", "--local-addr", "127.0.0.1"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", place, "--rdzv-id", config.run.name]
    return ["--nnodes", str(nodes), *meeting]


def inherited(variables: dict[str, str]) -> dict[str, str]:
    """Our own environment with `variables` on top."""
    return {**os.environ, **variables}


def become(argv: Sequence[str], variables: dict[str, str]) -> None:
    """Replace this process by another program: `headrace worker` is `python -m workers` from here on."""
    os.environ.update(variables)
    os.execv(argv[0], list(argv))
