"""`headrace fork`: a new run that begins where another one stood, with other settings.

    runs/demo/checkpoints/30/ ─▶ runs/demo-30/checkpoints/0/   the same tensors; the prompts' evidence, as of then
              weights/30-3f9a/ ─▶              weights/0/       its version 0, which is also its model.path
              run.toml, overrides ─▶           run.toml         run.parent says where it comes from

What was trained goes along. So does the optimizer's state, unless its betas are others; the reference policy, unless
loss.reference is another (else it is version 0); and what is known of each prompt, if neither the problem nor what its
outcomes were measured with has changed (else version 0 plays it anew). Updates and policy events count from 0 again.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline import checkpoint_folder, config_file, export, first_values, jsonl, trajectory_file, weights
from pipeline.checkpoint_folder import PREVIOUS, PROMPTS
from pipeline.config import Config
from pipeline.config_rules import unwise
from pipeline.errors import ConfigError
from pipeline.run_folder import find_run


def fork(run: str | None, version: int | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Make the new run's folder from checkpoint `version`, by default the newest; nothing is started.

    Raises ConfigError, DamagedCheckpoint, BadWeights or ProcessFailed.
    """
    parent = find_run(run)
    checkpoint = _checkpoint(parent, version)
    child = _settings(parent, checkpoint, overrides)
    if child.folder.exists():
        raise ConfigError(f"{child.folder} exists; give the new run another name: run.name=…")
    draft = child.run.folder / f".{child.run.name}.new"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        (draft / "checkpoints").mkdir(parents=True)
        first = draft / "weights" / "0"
        export.write(parent, int(checkpoint.name), first, child.model.dtype, link)
        weights.renumber(first, 0)
        kept = _write_checkpoint(parent, child, checkpoint, draft / "checkpoints" / "0")
        (draft / "run.toml").write_text(config_file.to_toml(child))
        draft.rename(child.folder)
    except FileNotFoundError as error:
        raise ConfigError(f"{error.filename} has just been deleted: fork from a newer checkpoint") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    warnings = {"warning": "\n".join(found)} if (found := list(unwise(child))) else {}
    return kept | warnings | {"next": f"headrace up {child.folder / 'run.toml'}"}


def _checkpoint(parent: Config, version: int | None) -> Path:
    there = checkpoint_folder.all_of(parent.folder / "checkpoints")
    for path in there:
        if version in (None, int(path.name)):
            return path
    names = ", ".join(path.name for path in reversed(there)) or "none"
    raise ConfigError(f"no checkpoint {version} of the run {parent.run.name!r}; there are: {names}")


def _settings(parent: Config, checkpoint: Path, overrides: Sequence[str]) -> Config:
    """The parent's, but for what a run with trained weights has no use for."""
    values = parent.model_dump(mode="json", exclude_none=True)
    values["run"] |= {"name": f"{parent.run.name}-{checkpoint.name}", "parent": str(checkpoint)}
    values["model"] = {"dtype": parent.model.dtype, "path": "(its version 0)"}
    values.pop("cold_start", None)
    values["advantage"].pop("values", None)
    child = config_file.of_values(values, overrides, f"{parent.folder / 'run.toml'}, changed")
    own = child.folder / "weights" / "0"
    for name, value in {"model.path": str(child.model.path), "run.parent": child.run.parent}.items():
        if value not in ("(its version 0)", str(checkpoint)):
            raise ConfigError(f"{name} = {value}: a fork begins with the policy of its parent; leave it out")
    if child.cold_start is not None:
        raise ConfigError("[cold_start]: a fork begins with a policy that is trained already; leave it out")
    return child.model_copy(update={"model": child.model.model_copy(update={"path": own})})


def _write_checkpoint(parent: Config, child: Config, checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Checkpoint 0 of `child`; says what of the parent's goes along."""
    state, betas = checkpoint_folder.read_state(checkpoint), child.optimizer.betas
    folder.mkdir()
    tensors = {name: digest for name, digest in state["files"].items() if name not in (PROMPTS, PREVIOUS)}
    for name in tensors:
        link(checkpoint / name, folder / name)
    prompts = list(_prompts(parent, child, checkpoint, state["event"]))
    (folder / PROMPTS).write_bytes(b"".join(map(jsonl.as_line, prompts)))
    if child.advantage.evidence == "receipt":
        known = {prompt["id"] for prompt in prompts}
        there = trajectory_file.read(checkpoint / PREVIOUS) if PREVIOUS in state["files"] else []
        trajectory_file.write(folder / PREVIOUS, [t for t in there if t.prompt_id in known])
    own = {name: checkpoint_folder.digest_of(folder / name) for name in (PROMPTS, PREVIOUS) if (folder / name).exists()}
    dropped = {"optimizer": betas != parent.optimizer.betas, "reference": child.loss.reference != parent.loss.reference}
    state["parts"] = [part for part in state["parts"] if not dropped.get(part)]
    state |= {"version": 0, "event": 0, "recent": [], "credits": [], "skipped_in_a_row": 0, "files": tensors | own}
    checkpoint_folder.write_state(folder, state)
    checkpoint_folder.verify(folder, state["files"])
    return {
        "run": child.run.name,
        "folder": str(child.folder),
        "parent": child.run.parent,
        "optimizer": "begins anew: its betas are others" if dropped["optimizer"] else "goes on",
        "values": f"of {len(prompts)} prompts go along" if prompts else "played by version 0",
    }


def _prompts(parent: Config, child: Config, checkpoint: Path, event: int) -> Iterator[dict[str, Any]]:
    """Their evidence as the parent had it at policy event `event`, which is the child's event 0; and their order in a
    shuffle's epochs."""
    if first_values.measured_by(parent) != first_values.measured_by(child):
        return
    checkpoint_folder.verify(checkpoint, [PROMPTS])
    there = jsonl.read(checkpoint / PROMPTS)
    same = first_values.digests(parent).items() & first_values.digests(child).items()
    ids, rho = {id for id, _ in same}, parent.advantage.rho if parent.advantage.evidence == "event" else 1.0
    begun = min((prompt["epoch"] + prompt["visits"] for prompt in there), default=0)
    for prompt in there:
        if prompt["id"] in ids:
            faded = rho ** (event - prompt["event"])
            yield {
                "id": prompt["id"],
                "alpha": prompt["alpha"] * faded,
                "beta": prompt["beta"] * faded,
                "event": 0,
                "visits": 0,
                "epoch": prompt["epoch"] + prompt["visits"] - begun,
            }


def link(source: Path, target: Path) -> None:
    """Neither of the two is ever written again, and each run deletes its own name of it."""
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)  # another disk, or one without links
