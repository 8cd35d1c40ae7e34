"""`headrace wandb`: a run's lines to Weights & Biases, while it goes on or afterwards; offline if WANDB_MODE says so.

    metrics.jsonl, evals.jsonl ──▶ the numbers of tensorboard.py, over `version` ──▶ W&B, project WANDB_PROJECT
    {run}/wandb/sent.json          the run's id over there, and how far each file is sent

What is sent cannot be taken back. So how far is noted before a line goes, and a later start goes on behind it: a kill
in between costs a line, and no point is ever there twice. Updates that a trainer makes again keep their first numbers.
Only numbers go: no settings, no prompts.
"""

import json
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pipeline.errors import HeadraceError
from pipeline.plot import read
from pipeline.tensorboard import LOOK_S, scalars

FILES = {"train": "metrics.jsonl", "eval": "evals.jsonl"}


def follow(run_folder: Path, on: bool, say: Callable[[str], None]) -> None:
    """Send what is not sent yet; `on`: go on as lines come, until Ctrl-C."""
    try:
        import wandb
    except ImportError as error:
        raise HeadraceError(f"this needs wandb ({error}): pip install 'headrace[wandb]'") from error
    folder = run_folder.resolve() / "wandb"
    folder.mkdir(exist_ok=True)
    sent = Sent(folder / "sent.json")
    session = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "headrace"),
        id=sent.id,
        name=run_folder.resolve().name,
        dir=str(folder.parent),
        resume="allow",
        settings=wandb.Settings(console="off", disable_git=True, x_disable_meta=True, x_disable_stats=True),
    )
    try:
        session.define_metric("version")
        session.define_metric("*", step_metric="version")
        with suppress(KeyboardInterrupt):
            say(f"{send(run_folder, sent, session.log)} lines sent: {session.url or session.dir}")
            while on:
                time.sleep(LOOK_S)
                send(run_folder, sent, session.log)
    finally:
        session.finish()


def send(run_folder: Path, sent: "Sent", log: Callable[[dict[str, float]], None]) -> int:
    """How many lines were new."""
    count = 0
    for kind, name in FILES.items():
        for line in read(run_folder / name):
            if line["version"] > sent.versions[kind]:
                sent.note(kind, line["version"])
                log({"version": line["version"], **dict(scalars(kind, line))})
                count += 1
    return count


class Sent:
    """How far each file is sent, on disk."""

    def __init__(self, path: Path):
        self._path = path
        found = json.loads(path.read_text()) if path.exists() else {}
        self.id = found.get("id", uuid.uuid4().hex)
        self.versions = {kind: found.get(kind, -1) for kind in FILES}

    def note(self, kind: str, version: int) -> None:
        self.versions[kind] = version
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps({"id": self.id, **self.versions}))
        draft.rename(self._path)
