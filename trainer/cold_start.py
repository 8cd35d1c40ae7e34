"""Before RL: version 0 of the policy. `python -m trainer.cold_start RUN.toml`

    model.path, or model.gguf made a folder, or [model.tiny] made on the spot
        └─▶ traces.bin: verifier-positive episodes of a script or a teacher ─▶ fine_tune.py ─▶ weights/0/

Stopping at a middling P(trace) leaves RL room in both directions. Without [cold_start], version 0 is the given model as
it is. Killed at any moment it starts over: weights/0 appears whole or not at all.
"""

import argparse
import logging
from pathlib import Path

import torch

from pipeline import checkpoint_folder, data, program, trajectory_file
from pipeline.config import Config
from pipeline.config_file import load
from pipeline.log import set_up
from pipeline.model_folder import check_model_folder, gguf_file
from pipeline.run_folder import wait_for
from pipeline.weights import MANIFEST
from trainer import from_gguf, tiny
from trainer import model as policy
from trainer.disk import remove_drafts
from trainer.fine_tune import fine_tune
from trainer.publish import probe_tokens, write_weights
from trainer.ranks import device_of

PROBE_QUESTIONS = 8
TRACES_S = 24 * 3600  # for `python -m workers.traces`, which may run beside this; a teacher takes its time

log = logging.getLogger(__name__)


def make_model(config: Config) -> None:
    """The model and its tokenizer in `config.model_path`, if [model.tiny] or model.gguf asks for them to be made."""
    if config.model.gguf is not None:
        from_gguf.make(config.model_path, gguf_file(config.model.gguf), config.model.dtype)
        check_model_folder(config.model_path, config.rollout.context_length)
    elif config.model.tiny is not None:
        context = max(4096, config.rollout.context_length)
        tiny.make(config.model_path, config.model.tiny, data.training_texts(config), config.run.seed, context)


def prepare(config: Config) -> None:
    """Make the model if it is to be made, fine-tune it and write weights/0. Returns at once if that is done,
    or if the run has a checkpoint already: version 0 may be deleted by then."""
    final = config.folder / "weights" / "0"
    if (final / MANIFEST).is_file() or checkpoint_folder.newest(config.folder / "checkpoints"):
        return
    make_model(config)
    torch.set_num_threads(config.trainer.threads)
    model = policy.load(config.model_path).to(device_of(config.trainer))
    if config.cold_start is not None:
        traces = config.folder / "traces.bin"
        if not traces.exists():
            log.info("waiting for %s, which `python -m workers.traces` makes", traces)
            wait_for(traces, TRACES_S)
        fine_tune(model, trajectory_file.read(traces), config)
    remove_drafts(final.parent)
    probe = probe_tokens(config.model_path, "\n".join(_questions(config)[:PROBE_QUESTIONS]))
    bucket_mb = config.publish.bucket_mb
    write_weights(model, final, 0, config.model_path, config.model.dtype, probe, bucket_mb=bucket_mb)


def _questions(config: Config) -> list[str]:
    return [problem["question"] for problem in data.training_problems(config)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trainer.cold_start", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the run's TOML file")
    config = load(parser.parse_args().run)
    set_up(config, "cold-start")
    prepare(config)


if __name__ == "__main__":
    program.run(main)
