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

from pipeline import engine_command, ports, programs, watch
from pipeline.cli import cli
from pipeline.config import Buffers
from pipeline.config_file import load, to_toml
from pipeline.engine_processes import engine_processes
from pipeline.programs import TRAINER_GRACE_S
from pipeline.redis_client import RedisFailed, connect
from pipeline.redis_server import find_binary
from tests.fixtures_users import DOCKER, ROLES, password, users_acl

ROOT = Path(__file__).parent.parent
COMPOSE = Path(sys.executable).with_name("docker-compose")
PROFILES = {"gpu": (), "cpu": ("--profile", "cpu")}  # .env.example chooses gpu
PASSWORDS = {f"REDIS_{role.upper()}_PASSWORD": password(role) for role in ROLES} | {
    "HEADRACE_API_KEY": "a key of tests"
}
OURS = {"gpu": ("cold-start", "trainer"), "cpu": ("cold-start-cpu", "trainer-cpu")}
ONCE = {"cold-start", "cold-start-cpu", "values"}  # they end; the others wait for that


def compose(*arguments, **variables):
    ours = ("HEADRACE_", "COMPOSE_", "DOCKER_", "REDIS_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)} | PASSWORDS | variables
    return subprocess.run(
        [COMPOSE, "--env-file", ".env.example", *arguments],
        cwd=ROOT,
        env={name: value for name, value in environment.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=30,
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


def test_without_passwords_compose_says_how_they_are_made():
    for name in PASSWORDS:
        found = compose("config", "-q", **{name: ""})
        assert found.returncode != 0
        assert f"required variable {name} is missing a value: is missing; `make .env` adds what" in found.stderr


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_compose_shows_its_configuration_without_a_password(form):
    """An issue, or a log of CI, may have it."""
    found = compose("--profile", "*", "config", "--format", form)
    assert found.returncode == 0, found.stderr
    assert "redis_viewer" in found.stdout
    assert not [name for name, value in PASSWORDS.items() if value in found.stdout]


@pytest.fixture
def made(tmp_path):
    """A function: what .env has after `make .env`, in a folder where it had `before`."""
    for name in ("Makefile", ".env.example"):
        (tmp_path / name).write_text((ROOT / name).read_text())

    def make(before=None):
        file = tmp_path / ".env"
        if before is not None:
            file.write_text(before)
        subprocess.run(["make", ".env"], cwd=tmp_path, check=True, capture_output=True, timeout=60)
        assert file.stat().st_mode & 0o777 == 0o600
        return file.read_text()

    return make


def values_in(text):
    return dict(line.split("=", 1) for line in text.splitlines() if line and line[0] != "#")


def test_make_makes_passwords_that_nobody_else_can_read(made):
    text, example = made(), (ROOT / ".env.example").read_text()
    assert text.startswith(example)
    added = values_in(text.removeprefix(example))
    assert added.keys() == PASSWORDS.keys()
    assert len(set(added.values())) == len(PASSWORDS)
    assert all(re.fullmatch("[0-9a-f]{48}", value) for value in added.values())


def test_make_adds_to_a_file_what_it_lacks_and_changes_nothing_in_it(made):
    before = (
        "COMPOSE_PROFILES=cpu\nREDIS_WORKER_PASSWORD=kept\nHEADRACE_API_KEY=\n#REDIS_VIEWER_PASSWORD=x\nTORCH_INDEX=i"
    )
    text = made(before)
    assert text.startswith(before + "\n")
    assert values_in(text.removeprefix(before)).keys() == PASSWORDS.keys() - {"REDIS_WORKER_PASSWORD"}
    assert made() == text
    example = (ROOT / ".env.example").read_text()
    assert values_in(made(example).removeprefix(example)).keys() == PASSWORDS.keys(), "as who copies it by hand"


def test_compose_takes_the_file_that_make_makes(made, tmp_path):
    made("HEADRACE_API_KEY=\n")
    found = compose("--env-file", tmp_path / ".env", "config", "-q", **dict.fromkeys(PASSWORDS))
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_no_line_of_what_a_person_edits_is_too_long_to_read():
    lines = (ROOT / ".env.example").read_text().splitlines()
    assert not [line for line in lines if len(line) > 120]


def test_no_password_is_in_the_repository():
    git = ["git", "-c", "safe.directory=*"]  # the checkout may be another user's
    known = subprocess.run([*git, "check-ignore", ".env"], cwd=ROOT, capture_output=True, text=True)
    assert known.stdout == ".env\n" or not (ROOT / ".git").exists()
    values = (line.partition("=") for line in (ROOT / ".env.example").read_text().splitlines())
    assert not [name for name, _, _ in values if "PASSWORD" in name or "KEY" in name]


def test_each_process_has_its_own_password_and_no_other(services):
    users = {"coordinator": "coordinator", "worker": "worker", "trainer": "trainer", "trainer-cpu": "trainer"}
    for name, service in services.items():
        secrets = {secret["source"]: secret["target"] for secret in service.get("secrets", [])}
        if name == "redis":
            assert set(secrets) == {f"redis_{role}" for role in ROLES}
            continue
        user = users.get(name)
        assert set(secrets) == {"api_key"} | ({f"redis_{user}"} if user else set()), name
        variables = service["environment"]
        assert variables["HEADRACE_API_KEY_FILE"] == secrets["api_key"]
        if user:
            assert variables["REDIS_URL"] == f"redis://{user}@redis:6379/0"
            assert variables["REDIS_PASSWORD_FILE"] == secrets[f"redis_{user}"]
        else:
            assert "REDIS_URL" not in variables, f"{name} needs no Redis"


def test_redis_cli_in_the_container_of_redis_has_the_viewers_password(services, tmp_path):
    """The first one on the image's PATH is ours, and calls the image's."""
    (ours,) = [each for each in services["redis"]["configs"] if each["target"] == "/usr/local/sbin/redis-cli"]
    file = ROOT / described("cpu")["configs"][ours["source"]]["file"]
    assert os.access(file, os.X_OK)
    users_acl(tmp_path)
    (tmp_path / "redis-cli").write_text('#!/bin/sh\necho "$REDISCLI_AUTH" "$@"\n')
    (tmp_path / "redis-cli").chmod(0o755)
    script = file.read_text().replace("/run/secrets", str(tmp_path)).replace("/usr/local/bin", str(tmp_path))
    asked = subprocess.run(
        ["sh", "-c", script, "redis-cli", "--user", "viewer", "PING"], capture_output=True, text=True
    )
    assert asked.stdout == f"{password('viewer')} --user viewer PING\n"


def test_a_server_that_shall_ask_for_a_key_does_not_start_without_one(tmp_path):
    (tmp_path / "demo").mkdir()
    recipe = load(ROOT / "pipeline" / "recipes" / "demo.toml", [f"run.folder={tmp_path}"])
    (tmp_path / "demo" / "run.toml").write_text(to_toml(recipe))
    (tmp_path / "key").write_text("\n")
    command = [a.replace("/runs", str(tmp_path)) for a in described("cpu")["services"]["sglang-cpu"]["command"]]
    started = subprocess.run(
        [sys.executable, "-I", engine_command.__file__, *command[2:]],
        cwd=ROOT,
        env={"PATH": str(tmp_path), "HEADRACE_API_KEY_FILE": str(tmp_path / "key")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert started.returncode == 1 and f"HEADRACE_API_KEY_FILE = '{tmp_path}/key' is empty" in started.stderr


def test_the_command_of_redis_starts_a_server_that_knows_the_users_and_nobody_else(tmp_path):
    service = described("cpu")["services"]["redis"]
    files = {
        config["target"]: ROOT / described("cpu")["configs"][config["source"]]["file"] for config in service["configs"]
    }
    secrets, run, bin = tmp_path / "secrets", tmp_path / "run", tmp_path / "bin"
    users_acl(secrets)
    run.mkdir(), bin.mkdir()
    (bin / "redis-server").symlink_to(find_binary())
    settings = tmp_path / "redis.conf"
    port = ports.free()[0]
    settings.write_text((DOCKER / "redis.conf").read_text().replace("dir /data", f"dir {tmp_path}\nport {port}"))
    shell, option, script = service["command"]
    for inside, outside in {
        **files,
        "/etc/headrace/redis.conf": settings,
        "/run/secrets": secrets,
        "/dev/shm": run,
    }.items():
        script = script.replace(inside, str(outside))
    variables = {"PATH": f"{bin}:{os.environ['PATH']}"}
    server = subprocess.Popen([shell, option, script], env=variables, stdout=subprocess.DEVNULL)
    try:
        for role in ROLES:
            with connect(f"redis://{role}:{password(role)}@127.0.0.1:{port}/0") as client:
                assert client.ping()
        for wrong in ("", ":guessed@", "worker:guessed@", f"worker:{password('viewer')}@"):
            with pytest.raises(RedisFailed, match="refuses this user or password"):
                connect(f"redis://{wrong}127.0.0.1:{port}/0")
        assert (run / "users").stat().st_mode & 0o777 == 0o600
        assert not [role for role in ROLES if password(role) in (run / "users").read_text()], "hashes only"
    finally:
        server.terminate()
        server.wait(20)


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), ("short\n", "expected a password of 16")])
def test_a_role_without_a_password_keeps_redis_from_starting(tmp_path, content, said):
    users_acl(tmp_path)
    (tmp_path / "redis_trainer").unlink()
    if content is not None:
        (tmp_path / "redis_trainer").write_text(content)
    command = ["sh", DOCKER / "users.sh", DOCKER / "users.acl", tmp_path]
    made = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert made.returncode != 0 and "redis_trainer" in made.stderr and said in made.stderr
