"""`python -m trainer.export RUN.toml 30 FOLDER`: the weights of a checkpoint, for Transformers and SGLang.

    checkpoints/30/*.distcp ─▶ one process, the whole model in the CPU's memory, float32 ─▶ FOLDER, in --dtype

No Redis, no process group and no GPU; the run may go on meanwhile. The model's and tokenizer's other files are those of
the folder that the run started from.
"""

import argparse
from pathlib import Path

from pipeline import checkpoint_folder, program
from pipeline.config import Config
from pipeline.config_file import load
from pipeline.log import set_up
from trainer import checkpoint
from trainer import model as policy
from trainer.model import DTYPES
from trainer.publish import write_weights


def export(config: Config, version: int, folder: Path, dtype: str) -> None:
    """Raises DamagedCheckpoint, ModelError, CheckpointError or PublishError."""
    path = config.folder / "checkpoints" / str(version)
    state = checkpoint_folder.read_state(path)
    checkpoint_folder.verify(path, state["files"])
    model = policy.load(config.model_path)
    checkpoint.load_policy(path, model)
    write_weights(model, folder, version, config.model_path, dtype, state["probe"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trainer.export", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the run's TOML file")
    parser.add_argument("version", type=int, help="of the checkpoint")
    parser.add_argument("folder", type=Path, help="to write; it must not exist")
    parser.add_argument("--dtype", choices=sorted(DTYPES), required=True, help="of the written weights")
    arguments = parser.parse_args()
    config = load(arguments.run)
    set_up(config, "export")
    export(config, arguments.version, arguments.folder, arguments.dtype)


if __name__ == "__main__":
    program.run(main)
