"""Fixtures of the pipeline's tests: published weights, the real engine, servers that play faults, fleets of them."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline import engine_fleet, engine_keeper
from pipeline.coordinator import Coordinator
from pipeline.engine_fleet import EngineFleet
from pipeline.engine_keeper import Publication
from pipeline.engines import Engine
from pipeline.ledger_types import Weights
from pipeline.weights import read_manifest, write_manifest

PUBLISH = """
import sys, torch
from pathlib import Path
from transformers import AutoModelForCausalLM
from pipeline.config_sections import TinyModel
from pipeline.weights import write_manifest
from tests.fixtures_sglang import QUESTIONS
from trainer.tiny import make
for version in (1, 2):
    folder = Path(sys.argv[1]) / "weights" / f"{version}-a"
    make(folder, TinyModel(), QUESTIONS, seed=version, context=1024)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.randint(0, 300, (1, 32), generator=torch.Generator().manual_seed(version))
    logprobs = model(tokens).logits[0].log_softmax(-1)[:-1].gather(1, tokens[0, 1:, None])[:, 0]
    write_manifest(folder, version, tokens[0].tolist(), logprobs.tolist(), "float32")
"""


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """A run's folder with weights/1-a and weights/2-a: two models of one shape, published as the trainer does."""
    folder = tmp_path_factory.mktemp("published")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # more threads on a busy machine cost ten times the time
    subprocess.run([sys.executable, "-c", PUBLISH, folder], check=True, env=environment, timeout=240)
    return folder


@pytest.fixture
def engine(sglang):
    """The real server; it serves its own model again afterwards."""
    engine = Engine(sglang.url)
    yield engine
    engine.load(sglang.model_path, "base", timeout_s=60)


@pytest.fixture
def http_server():
    """http_server(answer) -> URL; answer(path, request) -> (status, body) | seconds of silence."""
    servers, over = [], threading.Event()

    def start(answer):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                size = int(self.headers.get("content-length") or 0)
                found = answer(self.path, json.loads(self.rfile.read(size) or "{}"))
                if isinstance(found, int | float):
                    over.wait(found)
                    return
                status, body = found
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET

            def log_message(self, *arguments):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    over.set()
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


class ScriptedEngine:
    """Answers as SGLang does, from manifests instead of weights, and has the faults that it is told to have."""

    def __init__(self, http_server):
        self.label, self.manifest = "base", None
        self.faults = {}  # path -> answer
        self.loads = []  # versions, in order
        self.calls = []  # paths of what changes something, in order
        self.free = threading.Event()  # not set: requests are still running, and a load waits for them
        self.free.set()
        self.url = http_server(self._answer)

    def restart(self):
        """Killed, and started again by its supervisor: it serves its base weights."""
        self.label, self.manifest = "base", None

    def _answer(self, path, request):
        if path not in ("/model_info", "/generate", "/v1/loads"):
            self.calls.append(path.removeprefix("/"))
        if path in self.faults:
            return self.faults[path]
        if path == "/model_info":
            return 200, {"weight_version": self.label}
        if path == "/abort_request":
            return 200, b""
        if path == "/v1/loads":
            return 200, {"loads": [{"num_running_reqs": int(not self.free.is_set()), "num_waiting_reqs": 0}]}
        if path in ("/pause_generation", "/continue_generation"):
            return 200, {"status": "ok"}
        if path == "/update_weights_from_disk":
            self.free.wait(10)
            self.manifest = read_manifest(Path(request["model_path"]))
            self.label = request["weight_version"]
            self.loads.append(self.manifest.version)
            return 200, {"success": True, "message": "ok"}
        asked = len(request["input_ids"]) - 1
        logprobs = self.manifest.probe_logprobs[:asked] if self.manifest else [-9.0] * asked
        rows = [[p, token, None] for p, token in zip([None, *logprobs], request["input_ids"], strict=True)]
        meta = {"weight_version": self.label, "finish_reason": {"type": "length"}, "input_token_logprobs": rows}
        return 200, {"output_ids": [7] * request["sampling_params"]["max_new_tokens"], "meta_info": meta}


@pytest.fixture
def scripted_engine(http_server):
    """A new ScriptedEngine each call."""
    return lambda: ScriptedEngine(http_server)


@pytest.fixture
def whole_passes(monkeypatch):
    """A pass of the fleet waits until all engines are done with it, on a busy machine too."""
    monkeypatch.setattr(engine_fleet, "PASS_S", 10)


@pytest.fixture
def short_passes(monkeypatch):
    """A pass of the fleet goes on without the engines that are not done with it."""
    monkeypatch.setattr(engine_fleet, "PASS_S", 0.5)


@pytest.fixture
def ledger(client, run):
    return Coordinator.create(client, run, {"batch_size": 2, "max_staleness": 1})


@pytest.fixture
def fleet(ledger, tmp_path, whole_passes):
    """fleet(engine, …) -> EngineFleet of scripted engines, introduced."""

    fleets = []

    def start(*engines, load_timeout_s=0.3, **publication):
        fleet = EngineFleet(
            ledger, [engine.url for engine in engines], Publication(tmp_path, load_timeout_s, **publication)
        )
        fleet.introduce()
        fleets.append(fleet)
        return fleet

    yield start
    for fleet in fleets:
        fleet.finish(10)


@pytest.fixture
def weights(tmp_path):
    """weights(version) -> what the trainer published, lying in tmp_path."""

    def publish(version):
        folder = tmp_path / f"weights/{version}-a"
        folder.mkdir(parents=True)
        manifest = write_manifest(folder, version, range(32), [-1.0 - version] * 31, "float32")
        return Weights(version, f"weights/{version}-a", manifest.digest, version, 0)

    return publish


@pytest.fixture
def clock(monkeypatch):
    """clock[0] is the fleet's time in seconds."""
    now = [1000.0]
    monkeypatch.setattr(engine_keeper.time, "monotonic", lambda: now[0])
    return now


def shown(ledger):
    """name -> (state, version) of each engine in the ledger."""
    return {engine.name: (engine.state, engine.version) for engine in ledger.engines()}


def serve(engines, weights):
    """Passes until all engines serve `weights`; True if they do within a few."""
    return any(engines.follow(weights) for _ in range(20))
