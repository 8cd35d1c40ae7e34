"""Dashboard and alerts against what the processes of a run really serve, and against a real Prometheus (Debian's)."""

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pipeline import ports
from tests.looked_at import looked_at
from tests.waiting import wait_for

DOCKER = Path(__file__).parents[1] / "docker"
DASHBOARD = json.loads((DOCKER / "grafana" / "dashboards" / "headrace.json").read_text())
RULES = yaml.safe_load((DOCKER / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
QUERIES = {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
}
# of a server with a maxmemory
ELSEWHERE = {"headrace_redis_memory_limit_bytes"}
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="needs prometheus: apt-get install prometheus"
)

GOING = {"headrace_published_version": "0+0x60", "headrace_planned_updates": "9+0x60"}
OF_RUN = {"run": "demo"}
# alert -> series that make it fire, and its labels beside its severity's
FIRE = {
    "HeadraceNoProgress": ({"headrace_last_publication_timestamp_seconds": "0+0x60", **GOING}, OF_RUN),
    "HeadraceStuckHead": ({'headrace_head_state{state="STUCK"}': "1+0x60"}, OF_RUN | {"state": "STUCK"}),
    "HeadraceRunStopped": ({"headrace_run_stopped": "1+0x60"}, OF_RUN),
    "HeadraceLedgerDown": ({"headrace_ledger_up": "0+0x60"}, OF_RUN),
    "HeadraceMemoryNearBudget": (
        {"headrace_payload_committed_bytes": "95+0x60", "headrace_payload_budget_bytes": "100+0x60"},
        OF_RUN,
    ),
    "HeadraceRedisMemory": (
        {"headrace_redis_memory_bytes": "95+0x60", "headrace_redis_memory_limit_bytes": "100+0x60"},
        OF_RUN,
    ),
    "HeadraceEngineFailed": (
        {'headrace_engine_state{engine="e0",state="failed"}': "1+0x60"},
        OF_RUN | {"engine": "e0", "state": "failed"},
    ),
    "HeadraceNoEngine": ({'headrace_engine_state{engine="e0",state="ready"}': "0+0x60", **GOING}, OF_RUN),
    "HeadraceWorkerGone": ({"headrace_workers": "3+0x50 2+0x10"}, OF_RUN),
    "HeadraceNoWorker": ({"headrace_workers": "0+0x60", **GOING}, OF_RUN),
    "HeadraceProcessDown": (
        {'up{job="headrace",instance="h:1",process="trainer"}': "0+0x60"},
        OF_RUN | {"job": "headrace", "instance": "h:1", "process": "trainer"},
    ),
    "HeadraceMismatch": ({"headrace_mismatch_kl_nats": "0.3+0x60", "headrace_mismatch_alarm_nats": "0.1+0x60"}, OF_RUN),
    "HeadraceFailuresInARow": ({"headrace_consecutive_failures_ratio": "0.6+0x60"}, OF_RUN),
    "HeadraceStepsSkipped": ({"headrace_skipped_steps_total": "0+0x50 1+0x10"}, OF_RUN),
}
# the same series of a run that is well, or over, or that a person knows about, or for a moment only: no alert
QUIET = {
    "going": {
        "headrace_last_publication_timestamp_seconds": "0+60x60",
        'headrace_head_state{state="STUCK"}': "0+0x60",
        "headrace_payload_committed_bytes": "95+0x60",
        "headrace_payload_budget_bytes": "0+0x60",
        'headrace_engine_state{engine="e0",state="failed"}': "0+0x60",
        'headrace_engine_state{engine="e0",state="ready"}': "1+0x60",
        "headrace_workers": "2+0x60",
        "headrace_mismatch_kl_nats": "0.05+0x60",
        "headrace_mismatch_alarm_nats": "0.1+0x60",
        "headrace_skipped_steps_total": "3+0x60",
        **GOING,
    },
    "over": {
        "headrace_last_publication_timestamp_seconds": "0+0x60",
        'headrace_engine_state{engine="e0",state="ready"}': "0+0x60",
        "headrace_workers": "0+0x60",
        "headrace_published_version": "9+0x60",
        "headrace_planned_updates": "9+0x60",
    },
    "paused": {"headrace_last_publication_timestamp_seconds": "0+0x60", "headrace_run_paused": "1+0x60", **GOING},
    "late for five minutes": {"headrace_last_publication_timestamp_seconds": "1200+0x60", **GOING},
    "Redis misses a scrape": {"headrace_ledger_up": "1+0x54 0+0x5"},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("prometheus")


@pytest.fixture(scope="module")
def served(place, redis_url):
    """Addresses of the endpoints of a run in place/runs."""
    with looked_at(place / "runs", redis_url) as (_, addresses):
        yield addresses


def exposition(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        return reply.read().decode()


def names_in(query):
    return set(re.findall(r"\b(?:headrace|process)_\w+", query))


def test_whatever_dashboard_and_alerts_ask_for_is_served(served):
    parsed = [text_string_to_metric_families(exposition(address)) for address in served.values()]
    names = {sample.name for families in parsed for family in families for sample in family.samples}
    asked = [*QUERIES.values(), *(rule["expr"] for rule in RULES)]
    assert set().union(*map(names_in, asked)) - names <= ELSEWHERE


def test_every_sample_of_ours_names_its_run_and_no_label_names_an_entry_or_an_incarnation(served):
    labels = {}
    for address in served.values():
        for family in text_string_to_metric_families(exposition(address)):
            for sample in family.samples if family.name.startswith("headrace_") else ():
                assert sample.labels["run"] == "looked-at", sample
                for name, value in sample.labels.items():
                    labels.setdefault(name, set()).add(value)
    assert labels.keys() == {"run", "state", "outcome", "reason", "engine", "worker", "doing", "code", "how", "le"}
    assert labels["worker"] == {"worker-0"} | {"w0"}, "of the process, and as the ledger knows it"


def test_each_panel_shows_the_run_that_is_chosen():
    for title, query in QUERIES.items():
        for metric in re.findall(r"\bheadrace_\w+(?:\{[^}]*\})?", query):
            assert 'run="$run"' in metric, title


def test_every_alert_is_tried():
    assert [rule["alert"] for rule in RULES] == list(FIRE)


@needs_prometheus
def test_prometheus_takes_the_configuration_and_finds_no_fault_with_names(served, place):
    configured(place)
    for name in ("prometheus.yml", "local.yml"):
        checked = promtool("check", "config", place / "docker" / "prometheus" / name)
        assert checked.returncode == 0 and "WARNING" not in checked.stdout + checked.stderr, checked
    for process, address in served.items():
        checked = promtool("check", "metrics", given=exposition(address))
        assert (checked.returncode, checked.stderr) == (0, ""), f"{process}: {checked.stderr}{checked.stdout}"


@needs_prometheus
def test_each_alert_fires_for_its_cause_and_none_in_a_run_that_is_well_or_over(tmp_path):
    cases = []
    for alert, (series, labels) in FIRE.items():
        severity = next(rule["labels"]["severity"] for rule in RULES if rule["alert"] == alert)
        shown = {"__name__": "ALERTS", "alertname": alert, "alertstate": "firing", "severity": severity} | labels
        expected = [{"labels": selector(shown), "value": 1}]
        cases.append((series, f'ALERTS{{alertname="{alert}",alertstate="firing"}}', expected))
    cases += [(series, 'ALERTS{alertstate="firing"}', []) for series in QUIET.values()]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": of_run(name), "values": values} for name, values in series.items()],
            "promql_expr_test": [{"expr": query, "eval_time": "55m", "exp_samples": expected}],
        }
        for series, query, expected in cases
    ]
    file = tmp_path / "tests.yml"
    rules = str(DOCKER / "prometheus" / "alerts.yml")
    file.write_text(json.dumps({"rule_files": [rules], "evaluation_interval": "1m", "tests": tests}))
    checked = promtool("test", "rules", file)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_prometheus
def test_every_query_returns_data_from_a_prometheus_that_scrapes_a_run(served, place):
    with prometheus(place) as ask:
        wait_for(lambda: [row["value"][1] for row in ask("count(count_over_time(up[1m]) >= 3)")] == ["3"], 60)
        assert {row["metric"]["process"] for row in ask("up == 1")} == served.keys()
        without = {title: query for title, query in QUERIES.items() if not ask(in_grafana(query))}
        assert not without
        assert [row["metric"]["run"] for row in ask("headrace_published_version")] == ["looked-at"]
        assert {rule["name"] for rule in ask.rules()} == FIRE.keys()
        wait_for(lambda: {rule["health"] for rule in ask.rules()} == {"ok"})


def in_grafana(query):
    return query.replace("$run", "looked-at").replace("$__rate_interval", "1m")


def of_run(series):
    name, _, labels = series.partition("{")
    return f'{name}{{run="demo"{"," + labels if labels else "}"}'


def selector(labels):
    own = ",".join(f'{name}="{value}"' for name, value in labels.items() if name != "__name__")
    return f"{labels['__name__']}{{{own}}}"


def promtool(*arguments, given=None):
    return subprocess.run(["promtool", *arguments], input=given, capture_output=True, text=True, timeout=60)


def configured(place):
    """A copy of docker/prometheus that lies to place/runs as the original to the repository's runs, and is quick."""
    folder = place / "docker" / "prometheus"
    folder.mkdir(parents=True, exist_ok=True)
    for file in (DOCKER / "prometheus").glob("*.yml"):
        (folder / file.name).write_text(file.read_text().replace("15s", "1s"))
    return folder


class Ask:
    """The answer of a Prometheus to a query."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/api/v1"

    def __call__(self, query):
        return self._get(f"query?{urllib.parse.urlencode({'query': query})}")["result"]

    def rules(self):
        return self._get("rules")["groups"][0]["rules"]

    def _get(self, path):
        with urllib.request.urlopen(f"{self.url}/{path}", timeout=10) as reply:
            return json.load(reply)["data"]


@contextlib.contextmanager
def prometheus(place):
    (port,) = ports.free()
    log = (place / "prometheus.log").open("w")
    command = [
        "prometheus",
        f"--config.file={configured(place) / 'local.yml'}",
        f"--storage.tsdb.path={place / 'tsdb'}",
    ]
    with log, subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log) as process:
        try:
            wait_for(lambda: is_up(port) or process.poll() is not None, 60)
            assert process.poll() is None, (place / "prometheus.log").read_text()
            yield Ask(port)
        finally:
            process.terminate()
            process.wait(30)


def is_up(port):
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as reply:
        return reply.status == 200
    time.sleep(0.1)
    return False
