"""The command line of one SGLang server, from the settings of its run.

    headrace up ──▶ engine_processes.py ─────────────────────────────┐
    compose ──▶ python3 engine_command.py RUN.toml --runs FOLDER … ──┴─▶ argv() ──▶ python -m sglang.launch_server …

It imports nothing but the standard library: compose runs this file in SGLang's own image, which has nothing of ours.
It is the same server on a CPU, with what SGLang needs there.
"""

import argparse
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

HEALTH_S = 5.0  # for all of a container's servers together
END_S = 15.0  # SGLang looks for requests every 5 s, and then frees its GPU; docker kills all after 20


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


def gpus_of(engines: Mapping[str, Any], number: int) -> list[int]:
    """Of the server `number`, from 0 on; engines: a run's section."""
    tp = engines["tp"]
    return engines["gpus"][number * tp : (number + 1) * tp]


def main() -> None:
    """Become the server of a run whose version 0 is made, and whose settings are resolved therefore; if engines.count
    says so, all of its servers, on one port after another. --healthy: tell by the exit code whether all answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, metavar="RUN.toml", help="as it was given to the run's other processes")
    parser.add_argument("--runs", type=Path, required=True, help="the folder of all runs, their run.folder")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="before engines.device")
    parser.add_argument("--port", type=int, default=30000, help="of the first")
    parser.add_argument("--healthy", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.runs / tomllib.loads(arguments.run.read_text())["run"]["name"]
    settings = tomllib.loads((folder / "run.toml").read_text())
    engines = settings["engines"]
    engines["device"] = arguments.device or engines["device"]
    ports = range(arguments.port, arguments.port + max(1, engines["count"]))
    if arguments.healthy:
        for port in ports:
            urlopen(f"http://127.0.0.1:{port}/health", timeout=HEALTH_S / len(ports))
        return
    os.environ.update(environment(engines["device"]), OMP_NUM_THREADS=str(engines["threads"]), HF_HUB_OFFLINE="1")
    model = settings["model"].get("path") or str(folder / "model")
    commands = [argv("python3", settings, model, "0.0.0.0", port, api_key=_api_key()) for port in ports]
    gpus = [gpus_of(engines, number) for number in range(len(ports))]
    if len(commands) > 1:
        sys.exit(_serve(commands, gpus))
    os.environ.update(_visible(gpus[0]))
    os.execvp(commands[0][0], commands[0])


def _visible(gpus: list[int]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}


def _serve(commands: list[list[str]], gpus: list[list[int]]) -> int:
    """Several servers, which end together: the container starts all of them again when one has ended."""
    servers = [
        subprocess.Popen(command, env={**os.environ, **_visible(own)})
        for command, own in zip(commands, gpus, strict=True)
    ]

    def end(*_: object) -> None:
        for server in servers:
            server.terminate()

    signal.signal(signal.SIGTERM, end)
    ended, _ = os.wait()
    end()
    for server in servers:
        try:
            if server.pid != ended:
                server.wait(END_S)
        except subprocess.TimeoutExpired:
            server.kill()
    return 1


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
