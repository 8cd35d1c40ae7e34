"""The end of a run: its picture, its result in words, and where to look further.

metrics.jsonl, evals.jsonl, the ledger ──finish()──▶ curves.png, finished.json ──text()──▶ what a person reads
"""

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from redis import Redis

from pipeline import jsonl, keys, run_folder
from pipeline.config import Config
from pipeline.ledger_view import LedgerView
from pipeline.redis_server import find_binary
from pipeline.secrets import without_user


def is_finished(config: Config) -> bool:
    """True if the run has made all of its updates; raising run.total_steps makes it go on."""
    result = _result(config)
    return result is not None and result["updates"] >= config.run.total_steps


def minutes(config: Config) -> float:
    """What the last `headrace up` of a finished run took."""
    return _result(config)["minutes"]


def commands(client: Redis, run: str) -> list[str]:
    """Three commands for redis-cli that show what the ledger knows: the run, its newest consumed buffer, its events."""
    consumed = [view.id for view in LedgerView(client, run).buffers() if view.state == "CONSUMED"]
    shown = [keys.run(run), *(keys.buffer(run, number) for number in consumed[-1:])]
    return [*(f"HGETALL '{key}'" for key in shown), f"XREVRANGE '{keys.events(run)}' + - COUNT 5"]


def finish(config: Config, seconds: float, redis_url: str, commands: list[str]) -> None:
    """Draw the curves and write finished.json. commands: of `commands`, asked while Redis was up at redis_url."""
    from pipeline.plot import plot

    evaluations = sorted(jsonl.read(config.folder / "evals.jsonl"), key=lambda line: line["version"])
    picture = plot(config.folder)
    result = {
        "updates": config.run.total_steps,
        "minutes": round(seconds / 60, 2),
        "held_out": [{key: line[key] for key in ("version", "success", "stderr")} for line in evaluations],
        "curves": str(picture),
        "redis": without_user(redis_url),
        "commands": commands,
    }
    run_folder.write(config.folder / "finished.json", json.dumps(result, indent=1) + "\n")


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
    if config.eval.data and (not held_out or held_out[-1]["version"] < result["updates"]):
        log = config.folder / "logs" / "coordinator.log"
        lines.append(f"the evaluation of version {result['updates']} on held-out problems is missing; {log} says why")
    lines += [f"curves:      {result['curves']}", f"every event: {config.folder / 'events.jsonl'}", ""]
    return "\n".join(lines + _how_to_look(config, result))


def _how_to_look(config: Config, result: dict[str, Any]) -> list[str]:
    """Lines for redis-cli. The embedded server has ended with the run; one line more serves its data again."""
    lines, address = ["everything is still in Redis; look:"], f"-u {shlex.quote(result['redis'])}"
    server, served = config.folder / "redis" / "server.json", urlsplit(result["redis"])
    if server.exists() and served.hostname == "127.0.0.1" and json.loads(server.read_text())["port"] == served.port:
        binary, settings = find_binary(), server.with_name("redis.conf")
        serve = shlex.join([binary.name if shutil.which(binary.name) else _short(binary), str(settings)])
        lines, address = (
            ["everything is still in Redis; serve it again, and look:", f"    {serve} &"],
            f"-p {served.port}",
        )
    client = next((name for name in ("redis-cli", "valkey-cli") if shutil.which(name)), None)
    lines += [f"    {client or 'redis-cli'} {address} {command}" for command in result["commands"]]
    if client is None:
        lines.append("(redis-cli is not here yet: it comes with `apt-get install redis-tools`)")
    return lines


def _short(path: Path) -> str:
    """Relative to the working directory, where it lies below."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _result(config: Config) -> dict[str, Any] | None:
    path = config.folder / "finished.json"
    return json.loads(path.read_text()) if path.exists() else None
