"""Before RL: version 0 of the policy. `python -m trainer.cold_start RUN.toml`

    model.path, or model.gguf made a folder, or [model.tiny] made on the spot
        └─▶ traces.bin: scripted, verifier-positive episodes ── supervised steps on their action tokens ─┐
                 └─ the last tenth, held out: P(trace), checked every few steps ◀────────────────────────┤
                                                                  reaches cold_start.target: stop ───────┴─▶ weights/0/

P(trace) is exact: the probability that the policy, sampling at T = 1, writes a held-out trace token for token. Stopping
at a middling P leaves RL room in both directions. Without [cold_start], version 0 is the given model as it is.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from pipeline import data, program, trajectory_file
from pipeline.config import ColdStart, Config
from pipeline.config_file import load
from pipeline.errors import ConfigError, HeadraceError
from pipeline.model_folder import check_model_folder, gguf_file
from pipeline.run_folder import wait_for
from pipeline.trajectory import Trajectory
from pipeline.weights import MANIFEST
from trainer import checkpoint, from_gguf, tiny
from trainer import model as policy
from trainer.packing import pack, plan
from trainer.publish import probe_tokens, remove_drafts, write_weights
from trainer.ranks import device_of

CHECK_EVERY = 5  # steps; P(trace) can double within ten
WARM_UP = 10  # steps
HELD_OUT = 128  # traces at most
PROBE_QUESTIONS = 8
TRACES_S = 3600  # for `python -m workers.traces`, which may run beside this


class ColdStartFailed(HeadraceError):
    """Supervised fine-tuning did not get where it should."""

    code = "COLD_START"


def make_model(config: Config) -> None:
    """The model and its tokenizer in `config.model_path`, if [model.tiny] or model.gguf asks for them to be made."""
    if config.model.gguf is not None:
        from_gguf.make(config.model_path, gguf_file(config.model.gguf), config.model.dtype)
        check_model_folder(config.model_path, config.rollout.context_length)
    elif config.model.tiny is not None:
        context = max(4096, config.rollout.context_length)
        tiny.make(config.model_path, config.model.tiny, _questions(config), config.run.seed, context)


def prepare(config: Config) -> None:
    """Make the model if it is to be made, fine-tune it and write weights/0. Returns at once if that is done,
    or if the run has a checkpoint already: version 0 may be deleted by then."""
    final = config.folder / "weights" / "0"
    if (final / MANIFEST).is_file() or checkpoint.newest(config.folder / "checkpoints"):
        return
    make_model(config)
    torch.set_num_threads(config.trainer.threads)
    model = policy.load(config.model_path).to(device_of(config.trainer))
    if config.cold_start is not None:
        traces = config.folder / "traces.bin"
        if not traces.exists():
            print(f"waiting for {traces}, which `python -m workers.traces` makes", flush=True)
            wait_for(traces, TRACES_S)
        fine_tune(model, trajectory_file.read(traces), config)
    remove_drafts(final.parent)
    probe = probe_tokens(config.model_path, "\n".join(_questions(config)[:PROBE_QUESTIONS]))
    write_weights(model, final, 0, config.model_path, config.model.dtype, probe)


def fine_tune(model, traces: list[Trajectory], config: Config) -> float:
    """Train `model` in place until P(trace) of held-out traces reaches the target; returns it.

    Raises ColdStartFailed if `max_steps` are over before.
    """
    settings: ColdStart = config.cold_start
    held_out = max(1, min(HELD_OUT, len(traces) // 10))
    if len(traces) < 20:
        raise ConfigError(f"cold start: expected at least 20 traces, found {len(traces)}; raise cold_start.problems")
    train, held = traces[:-held_out], traces[-held_out:]
    # Where some traces use a tool and some do not, success is that of the ones that do.
    held = [trace for trace in held if trace.metrics.get("tool_calls")] or held
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    share_rows = policy.shares_rows(model, model.device)
    order = np.random.default_rng(config.run.seed)
    queue: list[int] = []
    began, chance = time.monotonic(), 0.0
    for step in range(1, settings.max_steps + 1):
        if len(queue) < settings.batch_size:
            queue += order.permutation(len(train)).tolist()
        batch, queue = [train[i] for i in queue[: settings.batch_size]], queue[settings.batch_size :]
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * min(1.0, step / WARM_UP)
        loss = _step(model, optimizer, batch, config, share_rows)
        if step % CHECK_EVERY == 0 or step == settings.max_steps:
            chance = trace_probability(model, held, config.trainer.token_budget, share_rows)
            print(f"step {step}: loss {loss:.3f}, P(held-out trace) {chance:.3f}", flush=True)
            if chance >= settings.target:
                print(f"cold start: P(held-out trace) {chance:.3f} after {time.monotonic() - began:.1f} s", flush=True)
                return chance
    raise ColdStartFailed(
        f"after cold_start.max_steps = {settings.max_steps} steps the held-out traces have probability {chance:.3f}, "
        f"below cold_start.target = {settings.target}: allow more steps, raise cold_start.lr or lower the target"
    )


def _step(model, optimizer, batch: list[Trajectory], config: Config, share_rows: bool) -> float:
    tokens = sum(t.action_tokens for t in batch)
    total = 0.0
    optimizer.zero_grad()
    for micro in _micro_batches(batch, config.trainer.token_budget, share_rows, model.device):
        logprobs, _ = policy.action_logprobs(model, micro)
        loss = -logprobs.sum() / tokens
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.max_grad_norm)
    if not torch.isfinite(norm):
        raise ColdStartFailed(f"the gradient's norm is {norm.item()} (loss {total}): lower cold_start.lr")
    optimizer.step()
    return total


@torch.no_grad()
def trace_probability(model, traces: list[Trajectory], token_budget: int, share_rows: bool = True) -> float:
    """Mean over traces of exp(Σ log p(action tokens)): the chance that T = 1 sampling reproduces one exactly."""
    chances: list[float] = []
    for micro in _micro_batches(traces, token_budget, share_rows, model.device):
        logprobs, _ = policy.action_logprobs(model, micro)
        chances += [part.sum().exp().item() for part in logprobs.split(micro.counts)]
    return float(np.mean(chances))


def _questions(config: Config) -> list[str]:
    return [problem["question"] for problem in data.training_problems(config)]


def _micro_batches(traces: list[Trajectory], token_budget: int, share_rows: bool, device: torch.device):
    for rows in plan([len(t.tokens) for t in traces], token_budget, share_rows=share_rows)[0]:
        yield pack(rows, traces).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trainer.cold_start", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the run's TOML file")
    prepare(load(parser.parse_args().run))


if __name__ == "__main__":
    program.run(main)
