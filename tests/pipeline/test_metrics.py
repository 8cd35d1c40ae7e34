"""What a process serves, read as Prometheus reads it; and where Prometheus finds it."""

import importlib.util
import json
import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipeline.config import Config
from pipeline.errors import ConfigError
from pipeline.metrics import Family, Histogram, by, check, counter, forget_targets, gauge, serving

FAMILIES = [
    gauge("headrace_version", "help", 3),
    counter("headrace_tokens_total", "help", 7.5, worker="w0"),
    by("gauge", "headrace_buffers", "help", "state", {"READY": 1, "STUCK": 0}),
    Family("histogram", "headrace_age_updates", "help", [({}, Histogram({0: 2, 1: 5, float("inf"): 6}, 8))]),
    by("counter", "headrace_nothing_total", "of which there is none yet", "reason", {}),
]


def config(folder, **metrics):
    run = {"name": "demo", "folder": str(folder)}
    return Config.model_validate({"run": run, "model": {"path": "m"}, "data": {"path": "d"}, "metrics": metrics})


def scraped(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        return {family.name: family for family in families}


def values(family):
    return {(sample.name, *sorted(sample.labels.items())): sample.value for sample in family.samples}


def test_a_process_serves_what_its_families_tell_at_that_moment(tmp_path):
    told = [gauge("headrace_version", "help", 1)]
    with serving(config(tmp_path, port=0), "w0", lambda: told) as address:
        assert address.startswith("127.0.0.1:")
        assert values(scraped(address)["headrace_version"]) == {("headrace_version", ("run", "demo")): 1}
        told[:] = FAMILIES
        found = scraped(address)
    run = ("run", "demo")
    assert values(found["headrace_tokens"]) == {("headrace_tokens_total", run, ("worker", "w0")): 7.5}
    assert values(found["headrace_buffers"]) == {
        ("headrace_buffers", run, ("state", "READY")): 1,
        ("headrace_buffers", run, ("state", "STUCK")): 0,
    }
    assert values(found["headrace_age_updates"]) == {
        ("headrace_age_updates_bucket", ("le", "0"), run): 2,
        ("headrace_age_updates_bucket", ("le", "1"), run): 5,
        ("headrace_age_updates_bucket", ("le", "+Inf"), run): 6,
        ("headrace_age_updates_count", run): 6,
        ("headrace_age_updates_sum", run): 8,
    }
    assert found["headrace_nothing"].type == "counter" and not found["headrace_nothing"].samples
    assert found["process_resident_memory_bytes"].samples[0].value > 0


def test_prometheus_finds_each_process_in_a_file_as_long_as_it_lives(tmp_path):
    settings = config(tmp_path, port=0)
    with serving(settings, "worker-0", list) as first, serving(settings, "worker-1", list) as second:
        assert first != second
        files = {path.name: json.loads(path.read_text()) for path in (tmp_path / ".prometheus").glob("*.json")}
        assert files == {
            "worker-0@demo.json": [{"targets": [first], "labels": {"run": "demo", "process": "worker-0"}}],
            "worker-1@demo.json": [{"targets": [second], "labels": {"run": "demo", "process": "worker-1"}}],
        }
    assert not list((tmp_path / ".prometheus").iterdir())


def test_a_process_that_ends_late_leaves_the_file_of_the_one_that_took_its_place(tmp_path):
    settings = config(tmp_path, port=0)
    with serving(settings, "worker-0", list):
        new = serving(settings, "worker-0", list)
        address = new.__enter__()
    (left,) = (tmp_path / ".prometheus").iterdir()
    assert json.loads(left.read_text())[0]["targets"] == [address]
    new.__exit__(None, None, None)
    assert not left.exists()


def test_what_killed_processes_leave_is_removed_with_the_next_start(tmp_path):
    settings, targets = config(tmp_path, port=0), tmp_path / ".prometheus"
    forget_targets(settings)
    targets.mkdir()
    for name in ("worker-0@demo", "worker-0@demo.2", "worker-0@another-demo"):
        (targets / f"{name}.json").write_text("[]")
    forget_targets(settings)
    assert sorted(path.stem for path in targets.iterdir()) == ["worker-0@another-demo", "worker-0@demo.2"]


def test_nothing_is_served_unless_asked_for(tmp_path):
    with serving(config(tmp_path), "worker-0", list) as address:
        assert address is None
    assert not list(tmp_path.iterdir())


def test_a_port_that_is_given_is_taken_or_refused_in_a_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=rf"metrics.port = {port} .*metrics.port = 0"),
            serving(config(tmp_path, port=port), "worker-0", list),
        ):
            pass
    with serving(config(tmp_path, port=port), "worker-0", list) as address:
        assert address == f"127.0.0.1:{port}" and "process_cpu_seconds" in scraped(address)
        assert not list(tmp_path.iterdir()), "whoever gives a port knows it"


def test_without_the_package_a_run_that_asks_for_metrics_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check(config(tmp_path))
    with pytest.raises(ConfigError, match=r"headrace\[metrics\]"):
        check(config(tmp_path, port=0))


def test_what_a_process_serves_is_not_part_of_the_runs_digest(tmp_path):
    assert config(tmp_path).digest == config(tmp_path, port=0, host="0.0.0.0").digest
