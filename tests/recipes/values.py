"""The value that every reservation froze, from the outcomes that the ledger had seen by then.

    event time   v = α / (α + β) of offline evidence and outcomes, each faded by ρ a policy event   (SPO++, Eq. 3)
    receipt      α ← ρ_i α + R, β ← ρ_i β + (1 - R) for each outcome that was trained, in that order   (SPO, Eq. 2)

Outcomes are those of the archived trajectories. From its first outcome that was never trained on, a prompt is left out.
"""

from pathlib import Path

from pipeline import jsonl
from pipeline.config import Config
from pipeline.trajectory import Trajectory

CLOSE = 1e-9
Evidence = tuple[float, float]


def offline(run: Path, config: Config) -> dict[str, Evidence]:
    """Jeffreys-smoothed, of total weight 8; design: algorithms.md 1."""
    path, mass = run / "values.jsonl", config.advantage.mass
    found = {}
    for line in jsonl.read(path) if path.exists() else []:
        n, s = len(line["outcomes"]), sum(line["outcomes"])
        found[line["id"]] = (mass * (s + 0.5) / (n + 1), mass * (n - s + 0.5) / (n + 1))
    return found


def event_time(run: Path, config: Config, trained: list[list[Trajectory]]) -> tuple[int, list[str]]:
    """How many values were compared, and those that differ."""
    first, rho = offline(run, config), config.advantage.rho
    outcomes = {}
    for t in (t for batch in trained for t in batch):
        outcomes.setdefault(t.entry, []).append((t.version // config.publish.every, t.outcome))
    seen: dict[str, list[tuple[int, float]]] = {}
    unknown: set[str] = set()
    compared, wrong = 0, []
    for line in jsonl.read(run / "events.jsonl"):
        prompt = line.get("prompt")
        if line["kind"] in ("placed", "surplus", "filtered"):
            if line["entry"] in outcomes:
                seen.setdefault(prompt, []).extend(outcomes[line["entry"]])
            else:
                unknown.add(prompt)
        if line["kind"] == "reserved" and prompt not in unknown:
            alpha, beta = first.get(prompt, (4.0, 4.0))
            for event, outcome in seen.get(prompt, []):  # relative to event 0, where the offline evidence is
                alpha, beta = alpha + rho**-event * outcome, beta + rho**-event * (1 - outcome)
            compared += 1
            if abs(alpha / (alpha + beta) - float(line["value"])) > CLOSE:
                wrong.append(f"{line['entry']} froze {line['value']} of {prompt}, replayed {alpha / (alpha + beta)}")
    return compared, wrong


def in_receipt_order(run: Path, config: Config, retentions: list[list[tuple[str, float, float]]]):
    """As event_time; retentions: of each update (prompt, ρ, outcome), in the batch's order."""
    evidence = offline(run, config)
    compared, wrong = 0, []
    for line in jsonl.read(run / "events.jsonl"):
        if line["kind"] == "credited":
            for prompt, retention, outcome in retentions[int(line["version"])]:
                alpha, beta = evidence.get(prompt, (4.0, 4.0))
                evidence[prompt] = (retention * alpha + outcome, retention * beta + 1 - outcome)
        if line["kind"] == "reserved":
            alpha, beta = evidence.get(line["prompt"], (4.0, 4.0))
            compared += 1
            if abs(alpha / (alpha + beta) - float(line["value"])) > 1e-4:  # drifts are float32
                wrong.append(f"{line['entry']} froze {line['value']}, replayed {alpha / (alpha + beta)}")
    return compared, wrong
