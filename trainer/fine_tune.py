"""Supervised fine-tuning on traces: what the cold start does to the model before it becomes version 0.

    traces ──by prompt──┬─▶ permutation after permutation ─batch_size─▶ -Σ log p / tokens ─▶ AdamW at lr(step)
                        └─▶ held out: loss and P(trace), at times ─▶ cold_start.target reached: stop
    each step is a line of cold_start.jsonl

    tokens      prompt   reply   observation   reply
    "all"       0 0 0    1 1 1   0 0 0 0       1 1 1       loss_mask, as the worker wrote it
    "final"     0 0 0    0 0 0   0 0 0 0       1 1 1       the assistant's last message alone

P(trace) is exact: the probability that the policy, sampling at T = 1, writes those tokens of a held-out trace, one for
one. arXiv 2608.24870, A.2: "final", cosine, two epochs.
"""

import itertools
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from pipeline import jsonl
from pipeline.config import Config
from pipeline.errors import ConfigError, HeadraceError
from pipeline.trajectory import Trajectory
from trainer import model as policy
from trainer.attention import suit
from trainer.packing import Layout, pack, plan
from trainer.schedule import learning_rate

CHECK_EVERY = 5  # steps, until a target is reached: P(trace) can double within ten
FEWEST = 20  # traces
MEASURED = 128  # held-out traces at most

log = logging.getLogger(__name__)


class ColdStartFailed(HeadraceError):
    """Supervised fine-tuning did not get where it should."""

    code = "COLD_START"


def fine_tune(model, traces: Sequence[Trajectory], config: Config) -> None:
    """Train `model` in place: `epochs` or `max_steps`, or until P(trace) of held-out traces reaches `target`.

    Raises ConfigError for too few traces, ColdStartFailed for a gradient that is not finite or a target not reached.
    """
    settings = config.cold_start
    train, held = split(traces, settings.held_out)
    if settings.loss == "final":
        train, held = [final_message(t) for t in train], [final_message(t) for t in held]
    per_epoch = math.ceil(len(train) / settings.batch_size)
    steps = math.ceil(settings.epochs * len(train) / settings.batch_size) if settings.epochs else settings.max_steps
    check_every = CHECK_EVERY if settings.target else per_epoch
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=settings.weight_decay, fused=True
    )
    layout = suit(model, model.device)
    lines = config.folder / "cold_start.jsonl"
    lines.unlink(missing_ok=True)  # of a cold start that was killed: this one begins anew
    began, chance = time.monotonic(), 0.0
    drawn = batches(len(train), settings.batch_size, config.run.seed)
    for step, chosen in enumerate(itertools.islice(drawn, steps), 1):
        if settings.epochs:  # the last batch of the last epoch may be a smaller one
            chosen = chosen[: settings.epochs * len(train) - (step - 1) * settings.batch_size]
        rate = learning_rate(step, settings.lr, settings.schedule, settings.warm_up, steps)
        loss, norm = _step(model, optimizer, [train[i] for i in chosen], rate, config, layout)
        line = {"step": step, "loss": loss, "lr": rate, "grad_norm": norm}
        if step % check_every == 0 or step == steps:
            line["held_out_loss"], line["trace_probability"] = held_out_loss(model, held, config, layout)
        jsonl.append(lines, line | {"seconds": round(time.monotonic() - began, 3)})
        if step % CHECK_EVERY == 0 or step == steps:
            log.info("%s", _sentence(line, steps))
        chance = line.get("trace_probability", chance)
        if settings.target and chance >= settings.target:
            break
    if settings.target and chance < settings.target:
        raise ColdStartFailed(
            f"after {steps} steps the held-out traces have probability {chance:.3f}, below cold_start.target = "
            f"{settings.target}: allow more (cold_start.max_steps, epochs), raise cold_start.lr or lower the target"
        )
    log.info("cold start: P(held-out trace) %.3f after %.1f s", chance, time.monotonic() - began)


def split(traces: Sequence[Trajectory], share: float) -> tuple[list[Trajectory], list[Trajectory]]:
    """(to train on, held out): all traces of the last `share` of the prompts are held out, at least one prompt's."""
    prompts = list(dict.fromkeys(t.prompt_id for t in traces))
    if len(traces) < FEWEST or len(prompts) < 2:
        raise ConfigError(
            f"cold start: expected at least {FEWEST} traces of 2 problems, found {len(traces)} of {len(prompts)}; "
            "raise cold_start.problems"
        )
    held_out = set(prompts[-min(len(prompts) - 1, max(1, round(share * len(prompts)))) :])
    train = [t for t in traces if t.prompt_id not in held_out]
    held = [t for t in traces if t.prompt_id in held_out]
    # Where some traces use a tool and some do not, success is that of the ones that do.
    return train, ([t for t in held if t.metrics.get("tool_calls")] or held)[:MEASURED]


def final_message(trace: Trajectory) -> Trajectory:
    """The trace with a loss on the assistant's last message alone; between two messages lies an observation."""
    actions = np.flatnonzero(trace.loss_mask)
    gaps = np.flatnonzero(np.diff(actions) > 1)
    mask = np.zeros_like(trace.loss_mask)
    mask[actions[gaps[-1] + 1 if len(gaps) else 0 :]] = 1
    return replace(trace, loss_mask=mask)


def batches(count: int, size: int, seed: int) -> Iterator[list[int]]:
    """Indices in [0, count), `size` at a time, of one random permutation after another, for ever."""
    draw = np.random.default_rng(seed)
    stream = (int(i) for _ in itertools.count() for i in draw.permutation(count))
    while True:
        yield list(itertools.islice(stream, size))


def _step(model, optimizer, batch: list[Trajectory], rate: float, config: Config, layout: Layout):
    """One optimizer step; (loss, norm of its gradient)."""
    tokens = sum(t.action_tokens for t in batch)
    total = 0.0
    optimizer.zero_grad()
    for _, logprobs in _logprobs(model, batch, config, layout):
        loss = -logprobs.sum() / tokens
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.max_grad_norm).item()
    if not math.isfinite(norm):
        raise ColdStartFailed(f"the gradient's norm is {norm} (loss {total}): lower cold_start.lr")
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return total, norm


@torch.no_grad()
def held_out_loss(model, traces: Sequence[Trajectory], config: Config, layout: Layout = "rows") -> tuple[float, float]:
    """(mean of -log p over the action tokens, nats; mean over traces of exp(Σ log p), which is P(trace))."""
    sums: list[float] = []
    for micro, logprobs in _logprobs(model, traces, config, layout):
        sums += [part.double().sum().item() for part in logprobs.split(micro.counts)]
    return -sum(sums) / sum(t.action_tokens for t in traces), float(np.mean(np.exp(sums)))


def _logprobs(model, traces: Sequence[Trajectory], config: Config, layout: Layout):
    """Micro-batches and the log-probs of their action tokens. In bfloat16 the weights stay float32."""
    half = torch.autocast(model.device.type, torch.bfloat16, enabled=config.model.dtype == "bfloat16")
    for rows in plan([len(t.tokens) for t in traces], config.trainer.token_budget, layout=layout)[0]:
        micro = pack(rows, traces).to(model.device)
        with half:
            logprobs, _ = policy.action_logprobs(model, micro)
        yield micro, logprobs


def _sentence(line: dict, steps: int) -> str:
    said = f"step {line['step']} of at most {steps}: loss {line['loss']:.3f}"
    if "trace_probability" in line:
        said += f", held out {line['held_out_loss']:.3f}, P(held-out trace) {line['trace_probability']:.3f}"
    return said
