"""The key that engines ask for: everybody who calls one brings it, and who has a wrong one is told so.

That SGLang asks for it, and that a whole run brings it, is seen in test_end_to_end.py.
"""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pipeline import engine_command
from pipeline.config_file import load
from pipeline.config_sections import Rollout
from pipeline.engine_processes import engine_processes
from pipeline.engines import Engine, EngineFailed
from pipeline.secrets import API_KEY
from pipeline.supervisor import Supervisor, log_end
from tests.waiting import wait_for
from workers import engine as rollout

KEY = "a-key-of-tests-0123456789"


@pytest.fixture
def asking():
    """URL of a server that knows no more of SGLang than its answer to whoever lacks the key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("content-length") or 0))
            known = self.headers.get("Authorization") == f"Bearer {KEY}"
            body = b'{"weight_version": "base"}' if known else b'{"error":"Unauthorized"}'
            self.send_response(200 if known else 401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def generate(url):
    async def main():
        async with rollout.connections() as http:
            await rollout.Engine("e0", url, http, rollout.sampling(Rollout(), 2), None, 20).generate([1], 1)

    asyncio.run(main())


def test_who_brings_the_key_is_answered(asking, monkeypatch, tmp_path):
    (tmp_path / "key").write_text(KEY + "\n")
    monkeypatch.setenv(f"{API_KEY}_FILE", str(tmp_path / "key"))
    assert Engine(asking).label() == "base"
    with pytest.raises(rollout.EngineError, match="not a reply of SGLang's /generate"):  # it is no more than that
        generate(asking)


@pytest.mark.parametrize(
    ("ours", "told"), [(None, "this process has none"), ("guessed", "this process brings another")]
)
def test_a_missing_or_wrong_key_is_one_message_with_the_way_out(asking, monkeypatch, ours, told):
    if ours:
        monkeypatch.setenv(API_KEY, ours)
    with pytest.raises(EngineFailed, match=f"asks for an API key, and {told}; give HEADRACE_API_KEY") as caught:
        Engine(asking).label()
    assert caught.value.code == "KEY"
    with pytest.raises(rollout.EngineRefused, match=f"engine e0 at {asking} asks for an API key, and {told}"):
        generate(asking)


def test_an_engine_that_is_started_here_asks_for_the_key_and_only_we_may_read_its_log(
    monkeypatch, tmp_path, sglang_stand_in
):
    monkeypatch.setenv(API_KEY, KEY)
    config = load("pipeline/recipes/demo.toml", [f"run.folder={tmp_path}"])
    (engine,) = engine_processes(config)
    argv = list(engine.program.argv)
    assert argv[argv.index("--api-key") + 1] == KEY
    supervisor = Supervisor()
    supervisor.start(engine.program)
    wait_for(supervisor.check, 30)
    assert engine.program.log.stat().st_mode & 0o777 == 0o600
    engine.program.log.write_text(f"server_args=(api_key='{KEY}')\nit fails\n")
    assert "it fails" in log_end(engine.program.log) and KEY not in log_end(engine.program.log)


def test_without_a_key_an_engine_asks_for_none(monkeypatch, tmp_path, sglang_stand_in):
    (engine,) = engine_processes(load("pipeline/recipes/demo.toml", [f"run.folder={tmp_path}"]))
    assert "--api-key" not in engine.program.argv


def test_in_a_container_the_key_is_in_the_file_of_the_secret(monkeypatch, tmp_path):
    (tmp_path / "key").write_text(KEY + "\n")
    assert engine_command._api_key() is None
    monkeypatch.setenv("HEADRACE_API_KEY_FILE", str(tmp_path / "key"))
    assert engine_command._api_key() == KEY
