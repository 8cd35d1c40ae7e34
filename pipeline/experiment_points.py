"""The points of an experiment: one for each update of each run, and the proof that its runs began alike.

{run}/metrics.jsonl ──curves()──▶ Curves ──as_csv()──▶ points.csv      setting,method,seed,update,reward,…
{run}/values.json, values.jsonl ──begun()──▶ digests of weights, prompts, first values and decoding
"""

import csv
import io
import json
from collections.abc import Iterator

from pipeline import jsonl, plot
from pipeline.experiment_spec import Experiment
from pipeline.experiment_table import Key
from pipeline.first_values import digest, digests, measured_by

COLUMNS = (
    "reward",
    "turns",
    "action_tokens",
    "advantage_center",
    "measure_mismatch",
    "length_correlation",
    "ppo_kl",
    "clip_fraction",
    "dual_clip_fraction",
    "grad_norm",
    "entropy",
    "mismatch_kl",
)
Curves = dict[Key, list[dict]]  # the lines of metrics.jsonl, by version


def curves(experiment: Experiment) -> Curves:
    """Of every run that the experiment asks for; empty of one that has not begun."""
    return {
        (trial.setting, trial.method, trial.seed): plot.read(trial.config.folder / "metrics.jsonl")
        for trial in experiment.trials
    }


def rewards(lines: list[dict]) -> list[float]:
    return [line["reward"] for line in lines]


def as_csv(found: Curves) -> str:
    """Numbers to six digits; what an update did not record is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("setting", "method", "seed", "update", *COLUMNS))
    for key, lines in found.items():
        for line in lines:
            values = (line.get(name) for name in COLUMNS)
            writer.writerow((*key, line["version"] + 1, *("" if v is None else f"{v:.6g}" for v in values)))
    return text.getvalue()


def begun(experiment: Experiment) -> Iterator[tuple[str, dict[str, str]]]:
    """Of the start and of each run that has begun: its weights, prompts and first values, and how it plays."""
    for config in (experiment.start, *(trial.config for trial in experiment.trials)):
        path = config.folder / "values.json"
        if path.exists():
            values = sorted((line["id"], line["outcomes"]) for line in jsonl.read(path.with_suffix(".jsonl")))
            yield (
                config.run.name,
                {
                    "weights": json.loads(path.read_text())["weights"],
                    "prompts": digest(digests(config)),
                    "first values": digest(values),
                    "decoding and environment": digest(measured_by(config)),
                },
            )
