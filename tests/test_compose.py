"""compose.yaml as docker compose itself reads it, for a host with GPUs and for the profile cpu. Nothing is started."""

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

from pipeline import engine_command, programs, watch
from pipeline.cli import cli
from pipeline.config import Buffers
from pipeline.config_file import load, to_toml
from pipeline.engine_processes import engine_processes
from pipeline.programs import TRAINER_GRACE_S

ROOT = Path(__file__).parent.parent
COMPOSE = Path(sys.executable).with_name("docker-compose")
PROFILES = {"gpu": (), "cpu": ("--profile", "cpu")}  # .env chooses gpu
OURS = {"gpu": ("cold-start", "trainer"), "cpu": ("cold-start-cpu", "trainer-cpu")}
ONCE = {"cold-start", "cold-start-cpu", "values"}  # they end; the others wait for that


def compose(*arguments, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HEADRACE_", "COMPOSE_", "DOCKER_"))}
    return subprocess.run(
        [COMPOSE, *arguments], cwd=ROOT, env=environment | variables, capture_output=True, text=True, timeout=30
    )


@cache
def described(profile, **variables):
    found = compose(*PROFILES[profile], "config", "--format", "json", **variables)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.fixture(params=PROFILES)
def profile(request):
    return request.param


@pytest.fixture
def services(profile):
    return described(profile)["services"]


def ours(services):
    return {
        name: service
        for name, service in services.items()
        if service["image"].startswith(("headrace-rollout:", "headrace-trainer:"))
    }


def test_compose_takes_the_file_without_a_word(profile):
    found = compose(*PROFILES[profile], "config", "-q")
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_every_profile_is_one_whole_run(profile, services):
    engine = {"gpu": "sglang", "cpu": "sglang-cpu"}[profile]
    assert set(services) == {"redis", "values", "coordinator", "worker", engine, *OURS[profile]}
    assert engine in services["values"]["depends_on"]


def test_every_image_is_pinned_to_a_version(services):
    ours_is = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name, service in services.items():
        image, _, tag = service["image"].rpartition(":")
        assert image and tag.removeprefix("v")[0].isdigit() and "." in tag, name
        if image in ("headrace-rollout", "headrace-trainer"):
            assert tag == ours_is


def test_the_sglang_of_both_profiles_is_the_one_that_is_tested():
    script = (ROOT / "docker" / "sglang-cpu" / "install.sh").read_text()
    for profile, name in {"gpu": "sglang", "cpu": "sglang-cpu"}.items():
        tag = described(profile)["services"][name]["image"].rpartition(":")[2]
        assert f"sglang=={tag.removeprefix('v')} " in script


def test_our_images_have_what_their_processes_need_and_only_the_trainers_has_torch(services):
    found = re.findall(r'"\.\[(.*)\$\{EXTRAS', (ROOT / "docker" / "headrace" / "Dockerfile").read_text())
    assert found == ["rollout,math,plot,metrics", "train,gguf,data"]  # the trainer's is built upon the rollout's
    for name, service in ours(services).items():
        trains = service["command"][0] in ("train", "cold-start")
        assert service["build"]["target"] == ("trainer" if trains else "rollout"), name
        assert service["image"].startswith(f"headrace-{service['build']['target']}:"), name


def test_no_port_is_published_and_nothing_is_privileged(services):
    for name, service in services.items():
        assert not service.get("ports") and not service.get("privileged") and "network_mode" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_every_service_that_lasts_says_whether_it_is_well_and_starts_again_when_it_is_killed(services):
    for name, service in services.items():
        lasts = name not in ONCE
        assert bool(service["healthcheck"].get("test")) == lasts, name
        assert (service.get("restart") in ("on-failure", "unless-stopped")) == lasts, name


def test_every_service_has_bounds_of_memory_and_log_and_an_init(services):
    for name, service in services.items():
        assert service["init"] and int(service["mem_limit"]) > 0, name
        assert {"max-size", "max-file"} <= service["logging"]["options"].keys(), name


def test_our_processes_are_commands_of_headrace_with_a_run_that_is_there(services):
    assert {service["command"][0] for service in ours(services).values()} == {
        "cold-start", "values", "coordinator", "worker", "train",
    }  # fmt: skip
    for service in ours(services).values():
        command, run, *overrides = service["command"]
        config = load(ROOT / run, overrides)
        assert command in cli.commands
        assert config.folder == Path("/runs") / config.run.name
        assert service["environment"]["HEADRACE_RUN"] == run


def test_a_run_is_written_to_the_same_place_in_every_container_and_engines_cannot_change_it(services):
    for name, service in services.items():
        places = {mount["target"]: mount for mount in service["volumes"]}
        if name == "redis":
            assert set(places) == {"/data"}
            continue
        assert places["/runs"]["source"] == "runs" and places["/runs"]["type"] == "volume"
        assert places["/runs"].get("read_only", False) == name.startswith("sglang")
        assert places["/headrace"]["read_only"] and service["working_dir"] == "/headrace"


def test_each_replica_of_the_worker_has_a_name_of_its_own(tmp_path, monkeypatch):
    """Compose gives a container a host name, and `--scale worker=N` gives all of them the same command."""
    started = []
    monkeypatch.setattr(programs, "become", lambda argv, variables: started.append(argv))
    monkeypatch.chdir(ROOT)
    for host in ("3fa95c0d1b2e", "77ab01c2d3e4"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        command = [str(a).replace("/runs", str(tmp_path)) for a in described("cpu")["services"]["worker"]["command"]]
        cli.main(command, standalone_mode=False)
    assert [argv[-2:] for argv in started] == [["--name", "worker-3fa95c0d1b2e"], ["--name", "worker-77ab01c2d3e4"]]


def test_the_engines_of_the_environment_are_the_coordinators(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(watch, "watch", lambda run_toml, urls: seen.append(urls))
    monkeypatch.setenv("HEADRACE_ENGINES", "http://one:30000 http://two:30000")
    cli.main(
        ["coordinator", str(ROOT / "pipeline" / "recipes" / "demo.toml"), f"run.folder={tmp_path}"],
        standalone_mode=False,
    )
    assert seen == [("http://one:30000", "http://two:30000")]


def test_another_run_and_another_folder_reach_every_process():
    run = {"HEADRACE_RUN": "mine.toml", "HEADRACE_FOLDER": "/somewhere"}
    services = described("cpu", **run)["services"]
    for name, service in services.items():
        if name != "redis":
            assert "mine.toml" in service["command"], name
            assert "/somewhere" in [mount["source"] for mount in service["volumes"]], name


def test_whoever_is_stopped_has_the_time_that_it_takes(profile, services):
    def seconds(name):
        text, total = services[name]["stop_grace_period"], 0
        for unit, factor in {"h": 3600, "m": 60, "s": 1}.items():
            number, found, rest = text.partition(unit)
            total, text = (total + int(number) * factor, rest) if found else (total, text)
        return total

    trainer = OURS[profile][1]
    assert seconds(trainer) > TRAINER_GRACE_S
    recipe = load(ROOT / services[trainer]["command"][1])
    assert seconds("worker") > recipe.rollout.grace_s + 5


def test_gpus_are_given_to_what_computes_on_them_and_to_nobody_on_a_cpu(profile, services):
    with_gpus = {name for name, service in services.items() if service.get("deploy", {}).get("resources")}
    assert with_gpus == ({"sglang", "cold-start", "trainer"} if profile == "gpu" else set())


def test_redis_holds_the_byte_budget_and_keeps_what_it_acknowledged(services):
    lines = (ROOT / "docker" / "redis.conf").read_text().splitlines()
    settings = dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    assert settings["appendonly"] == "yes" and settings["maxmemory-policy"] == "noeviction"
    maxmemory = int(settings["maxmemory"].removesuffix("gb")) << 30
    assert 1.5 * Buffers().byte_budget < maxmemory <= int(services["redis"]["mem_limit"]) / 2


def test_the_server_in_a_container_is_the_one_that_up_starts(tmp_path, monkeypatch):
    """Its image has nothing of ours, so its command line is made by a file that imports nothing of ours."""
    monkeypatch.setenv("HEADRACE_SGLANG_PYTHON", str(_python_with_sglang(tmp_path)))
    config = load(ROOT / "pipeline" / "recipes" / "demo.toml", [f"run.folder={tmp_path}"])
    config.folder.mkdir()
    (config.folder / "run.toml").write_text(to_toml(config))
    started = list(engine_processes(config)[0].program.argv)
    contained = _contained(tmp_path)
    assert contained[0] == "python3" and "--device cpu" in " ".join(contained)
    for argument in ("--host", "--port", "--random-seed"):
        _remove(argument, started), _remove(argument, contained)
    assert contained[1:] == started[1:]


def _contained(runs):
    """What the container of sglang-cpu executes, told by a python3 that prints its arguments."""
    (runs / "bin").mkdir()
    python3 = runs / "bin" / "python3"
    python3.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
    python3.chmod(0o755)
    command = described("cpu")["services"]["sglang-cpu"]["command"]
    arguments = [a.replace("/runs", str(runs)) for a in command[2:]]
    out = subprocess.run(
        [sys.executable, "-I", engine_command.__file__, *arguments],
        cwd=ROOT,
        env={"PATH": str(runs / "bin")},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    return ["python3", *out.splitlines()[1:]]


def _python_with_sglang(folder):
    python = folder / "python-with-sglang"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return python


def _remove(argument, argv):
    if argument in argv:
        at = argv.index(argument)
        del argv[at : at + 2]


@cache
def looking():
    """The profile metrics beside a run on a CPU."""
    found = compose("--profile", "cpu", "--profile", "metrics", "config", "--format", "json")
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)["services"]


def test_prometheus_and_grafana_are_a_profile_of_their_own_on_loopback_alone():
    added = looking().keys() - described("cpu")["services"].keys()
    assert added == {"prometheus", "grafana"}
    for name in added:
        service = looking()[name]
        assert [port["host_ip"] for port in service["ports"]] == ["127.0.0.1"], name
        assert service["init"] and int(service["mem_limit"]) > 0 and service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"] and service["security_opt"] == ["no-new-privileges:true"], name
        tag = service["image"].rpartition(":")[2].removeprefix("v")
        assert tag[0].isdigit() and "." in tag, name
        binds = [mount for mount in service["volumes"] if mount["type"] == "bind"]
        assert binds and all(mount["read_only"] and Path(mount["source"]).exists() for mount in binds), name


def test_grafana_is_for_looking_only_and_has_no_password():
    variables = looking()["grafana"]["environment"]
    assert variables["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer" and variables["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert not [name for name in variables if "PASSWORD" in name]
    home = Path(variables["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    mounted = {mount["target"]: mount["source"] for mount in looking()["grafana"]["volumes"]}
    assert (Path(mounted[str(home.parent)]) / home.name).is_file()


def test_every_process_serves_its_metrics_where_prometheus_looks(services):
    scraped = yaml.safe_load((ROOT / "docker" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    (found,), (always,) = scraped["dns_sd_configs"], scraped["static_configs"]
    aliases = {alias for each in services.values() for alias in (each["networks"]["default"] or {}).get("aliases", [])}
    assert {*found["names"]} <= services.keys() | aliases
    for name, service in ours(services).items():
        _, run, *overrides = service["command"]
        metrics = load(ROOT / run, overrides).metrics
        assert (metrics.host, metrics.port) == ("0.0.0.0", found["port"]), (
            f"{name}: the first one's settings are the run's"
        )
    assert always["targets"] == [f"coordinator:{found['port']}"]
