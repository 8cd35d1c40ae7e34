"""Starts SGLang servers: the command line, the ports, the wait until they answer.

    [engines] count, gpus, tp, port, args ──▶ engine-0, engine-1, …   python -m sglang.launch_server … --port P
                                                └ /health = 200 ──▶ ready to be given weights

An engine serves the model that the run starts from until weights are loaded into it; its label says so (`run:base`),
and nobody takes that for a version.
"""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import engine_command, ports
from pipeline.config import Config
from pipeline.engines import Engine
from pipeline.errors import ConfigError
from pipeline.programs import environment, log_of
from pipeline.secrets import API_KEY, secret
from pipeline.supervisor import Program, Supervisor

# After SIGTERM SGLang looks for requests every 5 s, and then frees its GPUs; on a CPU nothing is lost by killing it
GRACE_S = {"cpu": 0.0, "cuda": 15.0}


@dataclass(frozen=True)
class EngineProcess:
    name: str
    url: str
    program: Program


def engine_processes(config: Config, role: str = "engine", model: Path | None = None) -> list[EngineProcess]:
    """What to start for [engines]; nothing when engines.urls names servers that run already.

    role: of which the names are made; model: the folder to serve, if not the one that the run starts from.

    Raises ConfigError for a port in use and for an interpreter without SGLang.
    """
    if config.engines.urls:
        return []
    python = sglang_python(config.engines.python)
    found = _ports(config.engines.count, config.engines.port)
    model = model or config.model_path
    return [_engine(config, python, f"{role}-{number}", number, port, model) for number, port in enumerate(found)]


def _engine(config: Config, python: Path, name: str, number: int, port: int, model: Path) -> EngineProcess:
    settings, key = config.model_dump(mode="json"), secret(API_KEY)
    gpus = engine_command.gpus_of(settings["engines"], number)
    argv = engine_command.argv(str(python), settings, str(model), "127.0.0.1", port, config.run.seed + number, key)
    variables = environment(config.engines.threads, gpus) | engine_command.environment(config.engines.device)
    program = Program(
        name, argv, log_of(config, name), variables, GRACE_S[config.engines.device], serves=True, private=bool(key)
    )
    return EngineProcess(name, f"http://127.0.0.1:{port}", program)


def answers(url: str, timeout_s: float = 2) -> bool:
    """Whether the server at `url` is up; False while it starts."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=timeout_s) as reply:
            return reply.status == 200
    except OSError:
        return False


def wait_until_up(engines: Sequence[EngineProcess], supervisor: Supervisor, timeout_s: float) -> None:
    """Until every engine answers. Raises ProcessFailed if a process fails meanwhile, or it takes longer."""
    deadline = time.monotonic() + timeout_s
    for engine in engines:
        supervisor.wait_until(lambda url=engine.url: answers(url), engine.program, deadline - time.monotonic())


def load_version(url: str, folder: Path, config: Config) -> None:
    """Give the engine the weights in `folder` and see that it computes with them. Raises EngineFailed or BadWeights."""
    Engine(url).bring(folder, config.run.name, config.engines.load_timeout_s, config.engines.probe_tolerance)


def sglang_python(given: Path | None) -> Path:
    """The interpreter that has SGLang: engines.python, else HEADRACE_SGLANG_PYTHON, else .venv-sglang beside our own
    environment, where `make setup` puts it."""
    beside = Path(sys.prefix).parent / ".venv-sglang/bin/python"
    python = given or Path(os.environ.get("HEADRACE_SGLANG_PYTHON") or beside)
    advice = "`make setup` installs it; if it is elsewhere, set engines.python or HEADRACE_SGLANG_PYTHON"
    if not os.access(python, os.X_OK):
        raise ConfigError(f"no SGLang: {python} is not there; {advice}")
    # asking for the package's place takes 30 ms, importing it 6 s
    question = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    if subprocess.run([python, "-P", "-c", question], capture_output=True, timeout=30).returncode:
        raise ConfigError(f"no SGLang: {python} cannot import it; {advice}")
    return python.absolute()


def _ports(count: int, first: int) -> list[int]:
    """`count` ports of 127.0.0.1: first, first + 1, … or, for 0, free ones. Raises ConfigError if one is in use."""
    if not first:
        return ports.free(count)
    for port in range(first, first + count):
        if not ports.is_free(port):
            raise ConfigError(
                f"port {port} of engines.port is in use; end what listens there, choose another, "
                "or set engines.port = 0 for free ones"
            )
    return list(range(first, first + count))
