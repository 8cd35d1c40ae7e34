"""The command line of one SGLang server, from the settings of its run.

    headrace up ──▶ engine_processes.py ─────────────────────────────┐
    compose ──▶ python3 engine_command.py RUN.toml --runs FOLDER … ──┴─▶ argv() ──▶ python -m sglang.launch_server …

It imports nothing but the standard library: compose runs this file in SGLang's own image, which has nothing of ours.
It is the same server on a CPU, with what SGLang needs there.
"""

import argparse
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def argv(
    python: str,
    settings: Mapping[str, Any],
    model: str,
    host: str,
    port: int,
    seed: int | None = None,
    api_key: str | None = None,
) -> list[str]:
    """settings: a run's, resolved; model: the folder that it starts from; seed None: SGLang draws one; api_key: whoever
    asks it for anything but its health and its metrics must bring it."""
    engines = settings["engines"]
    command = [python, "-m", "sglang.launch_server", "--model-path", model, "--host", host, "--port", str(port)]
    command += ["--device", engines["device"], "--dtype", settings["model"]["dtype"]]
    command += ["--weight-version", f"{settings['run']['name']}:base", "--skip-server-warmup", "--sleep-on-idle"]
    if seed is not None:
        command += ["--random-seed", str(seed)]
    if api_key:
        command += ["--api-key", api_key]
    if engines["tp"] > 1:
        command += ["--tp", str(engines["tp"])]
    return command + engines["args"]


def environment(device: str) -> dict[str, str]:
    # /health would generate a token, which blocks while requests are paused for new weights
    variables = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
    return variables | ({"SGLANG_USE_CPU_ENGINE": "1"} if device == "cpu" else {})


def main() -> None:
    """Become the server of a run whose version 0 is made, and whose settings are resolved therefore."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, metavar="RUN.toml", help="as it was given to the run's other processes")
    parser.add_argument("--runs", type=Path, required=True, help="the folder of all runs, their run.folder")
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True, help="before engines.device")
    parser.add_argument("--port", type=int, default=30000)
    arguments = parser.parse_args()
    folder = arguments.runs / tomllib.loads(arguments.run.read_text())["run"]["name"]
    settings = tomllib.loads((folder / "run.toml").read_text())
    engines = settings["engines"] = settings["engines"] | {"device": arguments.device}
    os.environ.update(environment(arguments.device), OMP_NUM_THREADS=str(engines["threads"]), HF_HUB_OFFLINE="1")
    if engines["gpus"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, engines["gpus"]))
    model = settings["model"].get("path") or str(folder / "model")
    command = argv("python3", settings, model, "0.0.0.0", arguments.port, api_key=_api_key())
    os.execvp(command[0], command)


def _api_key() -> str | None:
    """HEADRACE_API_KEY, as pipeline/secrets.py takes it; with an empty file the server would be open to everybody."""
    path = os.environ.get("HEADRACE_API_KEY_FILE")
    if (given := os.environ.get("HEADRACE_API_KEY")) or not path:
        return given or None
    if not (found := Path(path).read_text().strip()):
        raise SystemExit(f"HEADRACE_API_KEY_FILE = {path!r} is empty: expected a key in it, as `make .env` makes one")
    return found


if __name__ == "__main__":
    main()
