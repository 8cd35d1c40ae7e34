"""A real SGLang server on a tiny model, one a test session, shared by all rooms: `sglang`.

HEADRACE_SGLANG_PYTHON (default .venv-sglang/bin/python) -m sglang.launch_server ──▶ sglang.url, .model_path, .process
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline import die_with_parent

QUESTIONS = ["12 * 7 = ?", "4 - 1 + 30 = ?"]
START_SECONDS = 280


@dataclass
class Server:
    url: str
    model_path: Path
    process: subprocess.Popen


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny") / "model", QUESTIONS, context=1024)


def make_model(folder: Path, questions: list[str], context: int) -> Path:
    """A tiny model's folder; made in a process of its own, so that the tests of other rooms stay free of torch."""
    code = (
        "import sys; from pathlib import Path; from pipeline.config_sections import TinyModel; "
        "from trainer.tiny import make; "
        f"make(Path(sys.argv[1]), TinyModel(), {questions!r}, seed=1, context={context})"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, env=_environment(), timeout=120)
    return folder


@pytest.fixture(scope="session")
def sglang(tiny_model, tmp_path_factory):
    """The server, ready; label "base". Tests that load other weights put `model_path` back."""
    server = start_server(tiny_model, tmp_path_factory.mktemp("sglang") / "server.log")
    yield server
    stop_server(server)


def start_server(model_path: Path, log: Path, label: str = "base", arguments: Sequence[str] = ()) -> Server:
    """Start one on a free loopback port and wait until it is healthy; an error shows the end of its log."""
    python = os.environ.get("HEADRACE_SGLANG_PYTHON", ".venv-sglang/bin/python")
    if not Path(python).exists():
        pytest.fail(f"no SGLang at {python}: `make setup` installs it, or set HEADRACE_SGLANG_PYTHON")
    port = _free_port()
    command = [sys.executable, "-S", "-E", die_with_parent.__file__, str(os.getpid())]
    command += [python, "-m", "sglang.launch_server", "--model-path", str(model_path), "--device", "cpu"]
    command += ["--dtype", "float32", "--host", "127.0.0.1", "--port", str(port), "--max-total-tokens", "16384"]
    command += ["--sleep-on-idle", "--skip-server-warmup", "--disable-overlap-schedule", "--weight-version", label]
    command += arguments
    environment = _environment() | {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    server = Server(f"http://127.0.0.1:{port}", model_path, process)
    end = time.monotonic() + START_SECONDS
    try:
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return server
            time.sleep(0.2)
    except BaseException:  # pytest's own time limit, or Ctrl-C
        stop_server(server)
        raise
    stop_server(server)
    pytest.fail(f"SGLang was not healthy after {START_SECONDS} s:\n{log.read_text()[-3000:]}")


def stop_server(server: Server) -> None:
    # The parent alone: it stops its children in order. It has nothing to save, so its group is killed soon after.
    server.process.terminate()
    try:
        server.process.wait(2)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def slow_down(url: str, seconds: float | None) -> None:
    """Seconds a forward pass, so that a test of what happens in mid-reply does not depend on the machine."""
    _post(f"{url}/slow_down", {"forward_sleep_time": seconds})


def abort_all(url: str) -> None:
    """Every request ends now, with what it has."""
    _post(f"{url}/abort_request", {"rid": "", "abort_all": True})


def serve(url: str, model_path: Path, label: str = "base") -> None:
    """Have it load other weights, or its own again."""
    weights = {"model_path": str(model_path), "weight_version": label, "flush_cache": True}
    _post(f"{url}/update_weights_from_disk", weights, timeout_s=60)


def running(url: str) -> int:
    """Requests that the server generates for at this moment."""
    with urllib.request.urlopen(f"{url}/v1/loads", timeout=10) as reply:
        return sum(load["num_running_reqs"] for load in json.load(reply)["loads"])


def generate(url: str, tokens: list[int], count: int) -> dict:
    """The reply that continues `tokens` by `count`, with the log-probs of both."""
    sampling = {"max_new_tokens": count, "ignore_eos": True, "temperature": 1}
    request = {"input_ids": tokens, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
    return json.loads(_post(f"{url}/generate", request, timeout_s=60))


def _post(url: str, body: dict, timeout_s: float = 10) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        return reply.read()


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
