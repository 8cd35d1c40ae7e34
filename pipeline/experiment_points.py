"""The points of an experiment: one for each update of each run, and the proof that its runs began alike.

{run}/metrics.jsonl ──curves()──▶ Curves ──as_csv()──▶ points.csv      setting,method,seed,update,reward,…
{run}/weights/0, values.json, values.jsonl ──begun()──▶ digests of weights, prompts, first values and decoding
"""

import csv
import io
import json
from collections.abc import Iterator

from pipeline import jsonl, plot
from pipeline.experiment_spec import Experiment
from pipeline.experiment_table import Key
from pipeline.first_values import digest
from pipeline.weights import MANIFEST, read_manifest

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
NO_DECODING = ("weights", "taken_from")  # of values.json
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
    """Of the start and of each run that has begun, as it has recorded them itself: its weights; if prompts have first
    values, these, its prompts, and how it plays. Raises BadWeights."""
    played = experiment.start.advantage.offline_rollouts > 0
    for config in (experiment.start, *(trial.config for trial in experiment.trials)):
        first, values = config.folder / "weights" / "0", config.folder / "values.json"
        if not (values if played else first / MANIFEST).exists():
            continue
        found = {"weights": read_manifest(first).digest[:16]}
        if played:
            lines = {line["id"]: line for line in jsonl.read(values.with_suffix(".jsonl"))}
            measured_with = json.loads(values.read_text())
            found |= {
                "prompts": digest({id: line["problem"] for id, line in lines.items()}),
                "first values": digest({id: line["outcomes"] for id, line in lines.items()}),
                "decoding and environment": digest({k: v for k, v in measured_with.items() if k not in NO_DECODING}),
            }
        yield config.run.name, found
