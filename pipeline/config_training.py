"""The sections of a run's file that say what becomes of a buffer, setting by setting; config_sections.py has the rest.

[advantage] what a trajectory is worth ─▶ [loss] ─▶ [optimizer] ─▶ [trainer] on which processes ─▶ [publish] weights
[cold_start] comes before all of it
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from pipeline.config_sections import Section


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


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))
