"""The end of a run: its picture, its result in words, and where to look further.

metrics.jsonl, evals.jsonl ──▶ curves.png, finished.json ──▶ text
"""

import json
import shlex
from pathlib import Path
from typing import Any

from pipeline import keys
from pipeline.config import Config
from pipeline.redis_server import find_binary


def is_finished(config: Config) -> bool:
    """True if the run has made all of its updates; raising run.total_steps makes it go on."""
    result = _result(config)
    return result is not None and result["updates"] >= config.run.total_steps


def finish(config: Config, seconds: float) -> None:
    """Draw the curves and write finished.json."""
    from pipeline.plot import plot

    evaluations = sorted(_lines(config.folder / "evals.jsonl"), key=lambda line: line["version"])
    picture = plot(config.folder)
    result = {
        "updates": config.run.total_steps,
        "minutes": round(seconds / 60, 2),
        "held_out": [{key: line[key] for key in ("version", "success", "stderr")} for line in evaluations],
        "curves": str(picture),
    }
    (config.folder / "finished.json").write_text(json.dumps(result, indent=1) + "\n")


def text(config: Config) -> str:
    """What a person reads at the end."""
    result = _result(config)
    lines = [f"{result['updates']} updates; the last `headrace up` took {result['minutes']:.1f} minutes"]
    if held_out := result["held_out"]:
        first, last = held_out[0], held_out[-1]
        lines.append(
            f"success on held-out problems: {first['success']:.2f} ± {first['stderr']:.2f} at version "
            f"{first['version']} → {last['success']:.2f} ± {last['stderr']:.2f} at version {last['version']}"
        )
    lines.append(f"curves: {result['curves']}")
    return "\n".join([*lines, "", *_how_to_look(config)])


def _how_to_look(config: Config) -> list[str]:
    """Three lines for redis-cli. The embedded server has ended with the run; one more line serves its data again."""
    run, folder = config.run.name, config.folder / "redis"
    lines = ["three lines to try:"]
    if folder.is_dir():
        port = next(
            line.split()[1] for line in (folder / "redis.conf").read_text().splitlines() if line.startswith("port")
        )
        serve = shlex.join([str(find_binary()), str(folder / "redis.conf")])
        lines = [f"everything is still in Redis; serve it again with\n    {serve} &", *lines]
        cli = f"redis-cli -p {port}"
    else:
        cli = 'redis-cli -u "$REDIS_URL"'
    last = config.run.total_steps
    return [
        *lines,
        f"    {cli} HGETALL '{keys.run(run)}'",
        f"    {cli} XREVRANGE '{keys.events(run)}' + - COUNT 5",
        f"    {cli} HGETALL '{keys.evaluation(run, last)}'",
    ]


def _result(config: Config) -> dict[str, Any] | None:
    path = config.folder / "finished.json"
    return json.loads(path.read_text()) if path.exists() else None


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
