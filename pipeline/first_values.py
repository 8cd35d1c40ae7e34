"""What the prompts are worth before training: n outcomes each of version 0, played here or taken from another run.

    values.json    what they were measured with: weights, decoding, environment
    values.jsonl   {"id", "problem", "outcomes": [n numbers in [0, 1]]}, a line a prompt; problem: its record's digest

    python -m workers.evaluate values ──add()───┐
    values.jsonl of advantage.values  ──take()──┴─▶ values.jsonl ──outcomes()──▶ Evidence.from_offline ──▶ the ledger

Values of other weights, settings or problems are refused: they would say nothing of this run's prompts.
"""

import hashlib
import json
import math
import statistics
from pathlib import Path
from typing import Any

from pipeline import checkpoint_folder, jsonl, run_folder
from pipeline.config import Config
from pipeline.data import Problem, training_problems
from pipeline.errors import ConfigError
from pipeline.weights import BadWeights, read_manifest

DECODING = ("temperature", "top_p", "top_k", "max_tokens", "context_length", "stop")
SHOWN = 5  # ids of prompts in a message


def missing(config: Config) -> list[Problem]:
    """The problems that have no `advantage.offline_rollouts` outcomes in {run folder}/values.jsonl yet, and no evidence
    in a checkpoint either, as those of a fork have."""
    n = config.advantage.offline_rollouts
    absent = _without(_lines(_path(config)), training_problems(config), n) if n else []
    known = checkpoint_folder.read_prompts(config.folder / "checkpoints") if absent else {}
    return [problem for problem in absent if problem["id"] not in known]


def begin(config: Config) -> None:
    """Before the first `add`: write down what is measured with. Raises ConfigError if what is there is of another."""
    path, ours = _path(config).with_suffix(".json"), _measured_with(config)
    if path.exists():
        if differences := _differences(_measured(path), ours):
            raise ConfigError(f"{path}: the values in this folder are of another version 0: delete them\n{differences}")
    else:
        run_folder.write(path, json.dumps(ours, indent=1) + "\n")


def add(config: Config, problem: Problem, outcomes: list[float]) -> None:
    """Keep the outcomes of one problem, all n at once."""
    jsonl.append(_path(config), {"id": problem["id"], "problem": digest(problem), "outcomes": outcomes})


def outcomes(config: Config) -> dict[str, list[float]]:
    """What is known of each prompt, by its id."""
    return {line["id"]: line["outcomes"] for line in _lines(_path(config)).values()}


def source(config: Config) -> dict[str, dict[str, Any]]:
    """The lines of advantage.values, by prompt. Raises ConfigError if they cannot be this run's values, whatever its
    weights will be."""
    path = _source(config)
    if not path.is_file():
        raise ConfigError(f"advantage.values: no file {path}; expected a run's folder, or the values.jsonl in it")
    theirs, ours = _measured(path.with_suffix(".json")), measured_by(config)
    if differences := _differences({name: theirs.get(name) for name in ours}, ours):
        raise ConfigError(f"advantage.values: {path} was measured with other settings than this run's\n{differences}")
    lines, problems, n = _lines(path), training_problems(config), config.advantage.offline_rollouts
    if absent := _without(lines, problems, n):
        ids = ", ".join(problem["id"] for problem in absent[:SHOWN]) + (" …" if len(absent) > SHOWN else "")
        raise ConfigError(
            f"advantage.values: {path} has no {n} outcomes (advantage.offline_rollouts) of {len(absent)} of the "
            f"{len(problems)} prompts, as they are here: {ids}; set offline_rollouts as that run had it, give this run "
            "the same problems, or remove advantage.values to play them here"
        )
    return {problem["id"]: lines[problem["id"]] for problem in problems}


def take(config: Config) -> None:
    """values.jsonl from advantage.values. Raises ConfigError if it was measured with other weights than version 0."""
    lines, ours = source(config), _measured_with(config)
    path = _source(config)
    theirs = _measured(path.with_suffix(".json"))
    if theirs["weights"] != ours["weights"]:
        raise ConfigError(
            f"advantage.values: {path} was measured with other weights ({theirs['weights']}) than this run's version 0 "
            f"({ours['weights']}); start from that run's version 0 (model.path = its weights/0, no [cold_start]), or "
            "remove advantage.values to play them here"
        )
    taken = ours | {"taken_from": str(path)}
    run_folder.write(_path(config).with_suffix(".json"), json.dumps(taken, indent=1) + "\n")
    run_folder.write(_path(config), b"".join(map(jsonl.as_line, lines.values())).decode())


def summary(config: Config) -> dict[str, Any]:
    """How the prompts' outcomes are spread: `histogram`, and how many are at none or all, where nothing is learned."""
    n, found = config.advantage.offline_rollouts, outcomes(config)
    sums = [math.fsum(found[problem["id"]]) for problem in training_problems(config)]
    return {
        "run": config.run.name,
        "prompts": len(sums),
        "rollouts": n,
        "success": statistics.fmean(sums) / n,
        "none": sum(s == 0 for s in sums),
        "all": sum(s == n for s in sums),
        "histogram": [{"successes": k, "prompts": sum(round(s) == k for s in sums)} for k in range(n + 1)],
    }


def digests(config: Config) -> dict[str, str]:
    """Of each training problem, by its id."""
    return {problem["id"]: digest(problem) for problem in training_problems(config)}


def _path(config: Config) -> Path:
    return config.folder / "values.jsonl"


def _source(config: Config) -> Path:
    given = config.advantage.values
    return given / "values.jsonl" if given.is_dir() else given


def _lines(path: Path) -> dict[str, dict[str, Any]]:
    return {line["id"]: line for line in jsonl.read(path)}


def _without(lines: dict[str, dict[str, Any]], problems: list[Problem], n: int) -> list[Problem]:
    """The problems that have no line with n outcomes, or one of another problem with the same id."""

    def known(problem: Problem) -> bool:
        line = lines.get(problem["id"])
        return line is not None and len(line["outcomes"]) == n and line.get("problem") == digest(problem)

    return [problem for problem in problems if not known(problem)]


def digest(found: Any) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def _measured_with(config: Config) -> dict[str, Any]:
    """weights: over the tensors' files alone, so that two runs that begin with the same model have the same."""
    try:
        files = read_manifest(config.folder / "weights" / "0").files
    except BadWeights as error:
        raise ConfigError(f"version 0 is not made yet ({error}); `headrace cold-start RUN.toml` makes it") from None
    tensors = sorted(item for item in files.items() if item[0].endswith(".safetensors"))
    return {"weights": hashlib.sha256(json.dumps(tensors).encode()).hexdigest()[:16]} | measured_by(config)


def measured_by(config: Config) -> dict[str, Any]:
    """The settings that an outcome depends on, besides the weights."""
    rollout, environment = config.rollout.model_dump(mode="json"), config.environment.model_dump(mode="json")
    chosen = {f"rollout.{name}": rollout[name] for name in DECODING}
    return chosen | {f"environment.{name}": environment[name] for name in ("name", "options", "max_turns")}


def _measured(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: expected what the values beside it were measured with, found: {error}; play them again"
        ) from None


def _differences(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    return "\n".join(f"    {k}: {theirs.get(k)} there, {v} here" for k, v in ours.items() if theirs.get(k) != v)
