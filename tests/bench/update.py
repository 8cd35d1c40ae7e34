"""One update against a plain Hugging Face loop: tokens a second, and the most memory each needs.

    128 trajectories, lognormal lengths (median 200, p95 1,000); a Qwen3 of 30 M parameters, vocabulary 49,152; float32
    this trainer   Updater: pack, forward, backward, clip, AdamW                        ┐ each in a process
    plain          micro-batches of 8 as they arrive, padded to the longest of them;    │ of its own, with one
                   an attention mask, logits of every token; the same loss, clip, AdamW ┘ thread

Tokens are those of the trajectories, a quarter of them prompt. Seconds are of CPU time, which on a machine with other
work says more; both sides have one thread. Memory is the peak of the resident set of the whole process (VmHWM):
interpreter and torch, parameters, gradients, optimizer state and all that is computed.

`python -m tests.bench.update FOLDER` keeps in FOLDER what each side was measured at: where it was interrupted, the side
that was done is not measured again.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from advantage import estimate
from pipeline.config import Config, Loss, Trainer
from pipeline.trajectory import Trajectory
from tests.bench.drawn import trajectory
from tests.bench.result import Result, markdown
from trainer.loss import policy_loss
from trainer.ranks import joined
from trainer.resume import make_updater
from trainer.throughput import peak_memory_gib
from trainer.tiny import write_model

COUNT, MEDIAN, P95 = 128, 200, 1000
VOCABULARY = 49_152
CONTEXT = 8192
ROWS = 8  # of the plain loop
FASTER, SMALLER = 2.0, 0.5
TOLERANCE = 1e-4  # between the losses of the two, relative


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        return compare(Path(folder))


def compare(folder: Path) -> list[Result]:
    if not ((model := folder / "model") / "model.safetensors").exists():
        make_model(model, VOCABULARY)
    ours, plain = (_measured(side, folder) for side in ("ours", "plain"))
    if abs(ours["loss"] - plain["loss"]) > TOLERANCE * abs(plain["loss"]):
        raise RuntimeError(f"the two do not compute the same: losses {ours['loss']} and {plain['loss']}")
    faster, smaller = plain["seconds"] / ours["seconds"], ours["peak_gib"] / plain["peak_gib"]
    tokens = int(lengths().sum())
    return [
        Result(
            f"tokens/s of an update of {tokens:,} tokens, of a plain Hugging Face loop's",
            f"{faster:.2f} ({tokens / ours['seconds']:,.0f} against {tokens / plain['seconds']:,.0f})",
            f">= {FASTER:g}",
            faster >= FASTER,
            (ours["seconds"], plain["seconds"]),
        ),
        Result(
            "peak memory of it, of the plain loop's",
            f"{smaller:.2f} ({ours['peak_gib']:.2f} GiB against {plain['peak_gib']:.2f} GiB)",
            f"<= {SMALLER:g}",
            smaller <= SMALLER,
            (ours["peak_gib"], plain["peak_gib"]),
        ),
    ]


def _measured(side: str, folder: Path) -> dict[str, float]:
    if not (known := folder / f"{side}.json").exists():
        command = [sys.executable, "-m", "tests.bench.update", side, str(folder / "model")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # its progress goes to stderr
        if done.returncode:
            raise RuntimeError(f"{side}: exit code {done.returncode}")
        known.write_text(done.stdout.splitlines()[-1])
    return json.loads(known.read_text())


def make_model(folder: Path, vocabulary: int, layers: int = 7) -> None:
    """A Qwen3 with random weights, embeddings tied: 30 M parameters with a vocabulary of 49,152."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    write_model(Qwen3ForCausalLM(config), folder)


def lengths() -> np.ndarray:
    draw = np.random.default_rng(0)
    spread = np.log(P95 / MEDIAN) / 1.645
    return draw.lognormal(np.log(MEDIAN), spread, COUNT).astype(int).clip(8, CONTEXT)


def settings(folder: Path, **trainer) -> Config:
    return Config.model_validate(
        {
            "run": {"name": "bench"},
            "model": {"path": folder},
            "data": {"tasks": {"chain_sum": {}}},
            "rollout": {"context_length": CONTEXT},
            "trainer": trainer | {"mismatch_alarm": 10},  # what these engines would have computed is drawn
        }
    )


def ours(folder: Path) -> dict[str, float]:
    with joined(Trainer()) as ranks:
        updater = make_updater(folder, settings(folder), ranks)
        return timed(lambda trajectories: updater.update(updater.prepare(trajectories), version=0)["loss"])


def plain(folder: Path) -> dict[str, float]:
    torch.set_num_threads(1)
    config = settings(folder).optimizer
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(
        model.parameters(), config.lr, config.betas, config.eps, config.weight_decay, fused=True
    )

    def update(trajectories: list[Trajectory]) -> float:
        counts = [t.action_tokens for t in trajectories]
        advantages = estimate(
            "spo++", [t.reward for t in trajectories], values=[t.value for t in trajectories], action_tokens=counts
        )
        optimizer.zero_grad()
        total = 0.0
        for first in range(0, len(trajectories), ROWS):
            rows = slice(first, first + ROWS)
            loss = _plain_loss(model, trajectories[rows], advantages[rows], sum(counts))
            loss.backward()
            total += loss.item()
            say(f"plain: {min(first + ROWS, len(trajectories))} of {len(trajectories)} trajectories")
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step()
        return total

    return timed(update)


def timed(update: Callable[[list[Trajectory]], float]) -> dict[str, float]:
    """Of the second update; the first, a small one, is what makes the optimizer's state."""
    trajectories = [trajectory(number, length, VOCABULARY) for number, length in enumerate(lengths())]
    update(trajectories[:2])
    say(f"an update of {len(trajectories)} trajectories begins")
    began = time.process_time()
    loss = update(trajectories)
    return {"seconds": time.process_time() - began, "loss": loss}


def say(what: str) -> None:
    print(f"{what} ({time.process_time():.0f} s of CPU time)", file=sys.stderr, flush=True)


def _plain_loss(model, trajectories: list[Trajectory], advantages: np.ndarray, tokens: int) -> torch.Tensor:
    def padded(name: str) -> torch.Tensor:
        rows = [torch.from_numpy(getattr(t, name)) for t in trajectories]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    ids, mask = padded("tokens").long(), padded("loss_mask")[:, 1:]
    attention = torch.nn.utils.rnn.pad_sequence([torch.ones(len(t.tokens)) for t in trajectories], batch_first=True)
    logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1]
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    weights = torch.from_numpy(advantages).float()[:, None]
    return policy_loss(logprobs, logprobs.detach(), padded("rollout_logprobs")[:, 1:], weights, mask, Loss(), tokens)[0]


def main(*sides: str, folder: Path) -> None:
    if not sides:
        print(markdown(compare(folder)))
        return
    found = {"ours": ours, "plain": plain}[sides[0]](folder)
    print(json.dumps(found | {"peak_gib": peak_memory_gib(torch.device("cpu"))}))


if __name__ == "__main__":
    main(*sys.argv[1:-1], folder=Path(sys.argv[-1]))
