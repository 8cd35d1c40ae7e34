"""What a person with 1, 2 or 8 GPUs edits, and what docker compose makes of it: who computes on which, asked by whom.

Nothing of it needs a GPU: each process is started up to the program that it becomes.
"""

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
import tomlkit

from pipeline import doctor_machine, engine_command, ports, programs
from pipeline.cli import cli
from pipeline.config_file import load, to_toml
from pipeline.errors import ConfigError
from tests.test_compose import ROOT, compose, described
from tests.waiting import alive, wait_for

# GPUs -> the lines of [engines] and of [trainer], as the README has them; then the servers' GPUs and the trainer's
ONE_EACH = [["0"], ["1"], ["2"], ["3"]]
EDITED = {
    "1": (
        'device = "cuda"|gpus = [0]|args = ["--mem-fraction-static", "0.4"]',
        "gpus = [0]|share_gpus = true|activation_checkpointing = true",
        [["0"]],
        "0",
    ),
    "2": ('device = "cuda"|gpus = [0]', "gpus = [1]", [["0"]], "1"),
    "8": (
        'device = "cuda"|count = 4|gpus = [0, 1, 2, 3]',
        "gpus = [4, 5, 6, 7]|ranks = 4",
        ONE_EACH,
        "4,5,6,7",
    ),
    "8, two of two": (
        'device = "cuda"|count = 2|tp = 2|gpus = [0, 1, 2, 3]',
        "gpus = [4, 5, 6, 7]|ranks = 4",
        [["0", "1"], ["2", "3"]],
        "4,5,6,7",
    ),
}
eight = pytest.mark.parametrize("edited", ["8"], indirect=True)


@pytest.fixture(params=EDITED)
def edited(request, tmp_path, headrace):
    """my.toml of the recipe math-tir, in a folder of its own, with those lines; and the services that compose sees."""
    engines, trainer, servers, gpus = EDITED[request.param]
    assert headrace("init", "my", "--recipe", "math-tir")[0] == 0
    (tmp_path / "model").mkdir()
    (tmp_path / "problems.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    document = tomlkit.parse((tmp_path / "my.toml").read_text())
    document["model"]["path"], document["data"]["path"] = "model", "problems.jsonl"
    document.get("eval", {}).pop("data", None)
    for section, lines in {"engines": engines, "trainer": trainer}.items():
        for name in ("gpus", "count", "tp", "ranks", "args"):
            document[section].pop(name, None)
        document[section].update(tomlkit.parse(lines.replace("|", "\n")))
    (tmp_path / "my.toml").write_text(tomlkit.dumps(document))
    urls = " ".join(f"http://sglang:{30000 + number}" for number in range(len(servers)))
    services = described("gpu", HEADRACE_RUN="my.toml", HEADRACE_FOLDER="/mine", HEADRACE_ENGINES=urls)["services"]
    return services, tmp_path, servers, gpus


def test_the_lines_of_env_for_eight_gpus_reach_the_processes(tmp_path):
    (tmp_path / ".env").write_text(
        "COMPOSE_PROFILES=gpu\nHEADRACE_RUN=my.toml\nHEADRACE_FOLDER=.      # of my.toml\nHEADRACE_WORKERS=2\n"
        "HEADRACE_ENGINES=http://sglang:30000 http://sglang:30001 http://sglang:30002 http://sglang:30003\n"
        "HEADRACE_TRAINER_MEMORY=256g\nHEADRACE_SGLANG_MEMORY=128g\n"
    )
    found = compose("--env-file", tmp_path / ".env", "config", "--format", "json")
    assert found.returncode == 0, found.stderr
    services = json.loads(found.stdout)["services"]
    for name in ("coordinator", "values", "worker"):
        assert len(services[name]["environment"]["HEADRACE_ENGINES"].split()) == 4, name
    assert services["worker"]["scale"] == 2
    assert int(services["trainer"]["mem_limit"]) == 1 << 38 and int(services["sglang"]["mem_limit"]) == 1 << 37
    assert {mount["source"] for mount in services["trainer"]["volumes"]} == {str(ROOT), "runs"}


def row(gpus):
    """The README's lines for a machine with so many GPUs."""
    found = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith(f"| {gpus} |")]
    return found[0]


@pytest.mark.parametrize("name", EDITED)
def test_the_readme_says_what_is_tested(name):
    engines, trainer, *_ = EDITED[name]
    for line in [*engines.split("|"), *trainer.split("|")]:
        assert f"`{line}`" in row(name[0]), line


def test_the_file_is_valid_and_every_gpu_is_used(edited, headrace):
    _, _, servers, gpus = edited
    code, out, err = headrace("validate", "my.toml")
    assert code == 0 and "my.toml is valid" in out, err
    engines, trains = {gpu for own in servers for gpu in own}, set(gpus.split(","))
    total = len(engines | trains)
    assert engines | trains == {str(gpu) for gpu in range(total)}
    assert not engines & trains or load("my.toml").trainer.share_gpus


def test_compose_gives_all_gpus_to_those_who_compute_and_they_choose(edited):
    services, *_ = edited
    for name, service in services.items():
        devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        wanted = [{"capabilities": ["gpu"], "count": -1, "driver": "nvidia"}]
        assert devices == (wanted if name in ("sglang", "trainer", "cold-start") else []), name
    for name in ("sglang", "trainer"):
        assert int(services[name]["shm_size"]) >= 1 << 33 and services[name]["ulimits"]["memlock"] == -1


PRINTS = '#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES|$*"\n'


@contextlib.contextmanager
def container(edited, script=PRINTS, *further):
    """The container of sglang, whose python3 is `script`."""
    services, folder, *_ = edited
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "python3").write_text(script)
    (folder / "bin" / "python3").chmod(0o755)
    config = load(folder / "my.toml", [f"run.folder={folder / 'runs'}"])
    config.folder.mkdir(parents=True, exist_ok=True)
    (config.folder / "run.toml").write_text(to_toml(config))
    arguments = [a.replace("/runs", str(folder / "runs")) for a in services["sglang"]["command"][2:]]
    process = subprocess.Popen(
        [sys.executable, "-I", engine_command.__file__, *arguments, *further],
        cwd=folder,
        env={"PATH": f"{folder / 'bin'}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def test_each_server_sees_its_own_gpus_and_answers_where_it_is_asked(edited):
    services, _, servers, _ = edited
    all_printed = f'echo >> printed; until [ "$(wc -l < printed)" -ge {len(servers)} ]; do sleep 0.05; done\n'
    with container(edited, PRINTS + all_printed) as process:
        said = process.communicate(timeout=60)[0].splitlines()
    found = {}
    for line in said:
        gpus, _, arguments = line.partition("|")
        argv = arguments.split()
        found[int(argv[argv.index("--port") + 1])] = gpus.split(",")
        assert (argv[argv.index("--tp") + 1] if "--tp" in argv else "1") == str(len(servers[0]))
        assert argv[argv.index("--device") + 1] == "cuda"
    assert [found[port] for port in sorted(found)] == servers
    urls = services["coordinator"]["environment"]["HEADRACE_ENGINES"].split()
    assert urls == [f"http://sglang:{port}" for port in sorted(found)]
    assert services["values"]["environment"]["HEADRACE_ENGINES"].split() == urls


def test_the_trainer_has_a_rank_on_each_of_its_gpus(edited, monkeypatch):
    services, folder, _, gpus = edited
    started = []
    monkeypatch.setattr(programs, "become", lambda argv, variables: started.append((argv, variables)))
    command = [a.replace("/runs", str(folder / "runs")) for a in services["trainer"]["command"]]
    cli.main(command, standalone_mode=False)
    ((argv, variables),) = started
    assert variables["CUDA_VISIBLE_DEVICES"] == gpus
    ranks = len(gpus.split(","))
    assert ("--nproc-per-node" in argv) == (ranks > 1)
    if ranks > 1:
        assert argv[argv.index("--nproc-per-node") + 1] == str(ranks)


@eight
def test_doctor_says_which_gpu_is_missing(edited, monkeypatch):
    folder = edited[1]
    (smi := folder / "nvidia-smi").write_text("#!/bin/sh\nfor i in 0 1 2 3 4 5 6; do echo $i, H100, 550; done\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    ok, found, fix = doctor_machine.gpus(load("my.toml"))
    assert not ok and found.endswith("the run wants also [7]") and "engines.gpus and trainer.gpus" in fix


LIVES = "#!/bin/sh\necho $$ >> pids\nexec sleep 100\n"


def pids(folder):
    file = folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


@eight
def test_servers_of_one_container_end_together_so_that_it_starts_again(edited):
    folder = edited[1]
    with container(edited, LIVES) as process:
        wait_for(lambda: len(pids(folder)) == 4)
        os.kill(pids(folder)[2], signal.SIGKILL)
        assert process.wait(30) == 1
        assert not [pid for pid in pids(folder) if alive(pid)]


@eight
def test_a_container_that_is_stopped_leaves_no_server(edited):
    folder = edited[1]
    with container(edited, LIVES) as process:
        wait_for(lambda: len(pids(folder)) == 4)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        assert not [pid for pid in pids(folder) if alive(pid)]


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("edited", ["8, two of two"], indirect=True)
def test_a_container_is_healthy_once_all_its_servers_are(edited):
    services = edited[0]
    command = services["sglang"]["healthcheck"]["test"]
    assert command[:3] == ["CMD", "python3", "/engine_command.py"] and command[-1] == "--healthy"

    def healthy(port):
        with container(edited, PRINTS, "--healthy", "--port", str(port)) as process:
            return process.wait(60) == 0

    with contextlib.ExitStack() as stack:
        first, port = two_ports(stack)
        assert not healthy(port), "the second does not answer"
        second = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", port + 1), Healthy))
        for server in (first, second):
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
        assert healthy(port)


def two_ports(stack):
    """A server, and its port; nobody has the next one."""
    while True:
        server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy))
        if ports.is_free(server.server_port + 1):
            return server, server.server_port


@eight
def test_a_coordinator_that_knows_too_few_of_them_says_so(edited, monkeypatch, capsys):
    _, folder, *_ = edited
    monkeypatch.delenv("REDIS_URL", raising=False)
    cli_arguments = ["coordinator", str(folder / "my.toml"), f"run.folder={folder / 'runs'}"]
    monkeypatch.setenv("HEADRACE_ENGINES", "http://sglang:30000")
    with pytest.raises(ConfigError, match="no Redis"):
        cli.main(cli_arguments, standalone_mode=False)
    said = capsys.readouterr().err
    assert "1 of engines.count = 4 are known: name the others too, in HEADRACE_ENGINES" in said
