"""Every algorithm's recipe, run and recomputed: `python -m tests.recipes [RECIPE …] [--updates 5]`. By hand.

trial.py     a recipe under `headrace up`, with real SGLang
replay.py    the same updates by an independent trainer, from what the run left behind
formulas.py  the papers' formulas, one trajectory after the other
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

import transformers

from pipeline.config_file import load
from pipeline.recipe_files import recipes, write
from tests.recipes.trial import Trial


def on_the_demo_task() -> list[str]:
    """The recipes that differ from the demo in their algorithm alone."""
    with tempfile.TemporaryDirectory() as folder:
        tasks = {recipe: load(write(recipe, recipe, Path(folder))).data.tasks for recipe in recipes()}
    return [recipe for recipe, found in tasks.items() if found == tasks["demo"]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.recipes")
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help="default: all on the demo's task")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to run; default: a temporary one")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    python = Path(os.environ.get("HEADRACE_SGLANG_PYTHON", ".venv-sglang/bin/python"))
    os.environ["HEADRACE_SGLANG_PYTHON"] = str(python.absolute())
    os.environ.pop("REDIS_URL", None)
    transformers.utils.logging.disable_progress_bar()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="headrace-recipes-"))
    print(f"everything is in {folder}", flush=True)
    first, failed = None, False
    for recipe in given.recipes or on_the_demo_task():
        trial = Trial(recipe, folder.absolute() / recipe, given.updates, given.set)
        if first:
            trial.begin_as(first)
        wrong = [text] if (text := trial.up()) else trial.differences()
        wrong += [text] if (text := trial.audit()) else []
        failed |= bool(wrong)
        first = first or trial
        rewards = " ".join(f"{reward:.2f}" for reward in trial.rewards)
        print(
            f"{recipe:<28} {'DIFFERS' if wrong else 'agrees':<8} {trial.seconds:4.0f} s   reward {rewards}", flush=True
        )
        for text in wrong:
            print(f"    {text}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
