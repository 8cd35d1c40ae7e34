"""/metrics of one process, for Prometheus: what its families tell at the moment of a scrape.

    LedgerMetrics    coordinator   the whole ledger                    │
    WorkerMetrics    each worker   its episodes, refusals and waits    ├─▶ families() ─▶ serving(…) ─▶ GET /metrics
    TrainerMetrics   trainer       its updates and where time goes     │
                     all           process_cpu_seconds_total, process_resident_memory_bytes, …

    metrics.port = 0 ─▶ a free port, named in {run.folder}/.prometheus/worker-0@demo.json, as file_sd_configs reads it,
    for as long as the process lives; `headrace up` removes what killed ones left. One folder for all runs, because
    Prometheus takes a * for a file's name, and for no folder's.

Names follow Prometheus' conventions: base units, _total for counters. Every sample has the label `run`; no label has
values without a bound, such as ids of entries. Nothing is counted twice: what a process keeps anyway is read here.
"""

import contextlib
import importlib.util
import json
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pipeline.config import Config
from pipeline.errors import ConfigError

INSTALL = "metrics.port is set, but the package prometheus-client is missing: `pip install 'headrace[metrics]'`"

log = logging.getLogger(__name__)


class Histogram(NamedTuple):
    """counts: how many observations were at most each bound, the last one inf."""

    counts: Mapping[float, int]
    sum: float


class Family(NamedTuple):
    """One metric. kind: gauge | counter, whose name ends in _total | histogram."""

    kind: str
    name: str
    help: str
    samples: Iterable[tuple[Mapping[str, str], float | Histogram]]


Families = Callable[[], Iterable[Family]]


def gauge(name: str, help: str, value: float, **labels: str) -> Family:
    return Family("gauge", name, help, [(labels, value)])


def counter(name: str, help: str, value: float, **labels: str) -> Family:
    return Family("counter", name, help, [(labels, value)])


def by(kind: str, name: str, help: str, label: str, values: Mapping[str, float]) -> Family:
    """One sample for each value of `label`."""
    return Family(kind, name, help, [({label: each}, value) for each, value in values.items()])


def check(config: Config) -> None:
    """Raises ConfigError if this environment cannot serve what the settings ask for."""
    if config.metrics.port is not None and importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError(INSTALL)


@contextlib.contextmanager
def serving(config: Config, process: str, families: Families) -> Iterator[str | None]:
    """Serve them meanwhile, if metrics.port asks for it; the address that they are at. Raises ConfigError."""
    if config.metrics.port is None:
        yield None
        return
    check(config)
    from prometheus_client import start_http_server

    settings = config.metrics
    try:
        server, thread = start_http_server(settings.port, settings.host, _registry(config.run.name, families))
    except OSError as error:
        raise ConfigError(
            f"metrics.port = {settings.port} at metrics.host = {settings.host!r} cannot be served: {error}; "
            "processes on one machine need metrics.port = 0, which takes free ones"
        ) from None
    host = socket.gethostname() if settings.host in ("0.0.0.0", "::") else settings.host
    address = f"{f'[{host}]' if ':' in host else host}:{server.server_port}"
    log.info("metrics are served at http://%s/metrics", address)
    try:
        with _named(config, process, address) if settings.port == 0 else contextlib.nullcontext():
            yield address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def forget_targets(config: Config) -> None:
    """Remove what killed processes of the run have left; nothing of it may run."""
    for path in _target(config, "").parent.glob(_target(config, "*").name):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _named(config: Config, process: str, address: str) -> Iterator[None]:
    """A file that Prometheus finds this process by."""
    path = _target(config, process)
    text = json.dumps([{"targets": [address], "labels": {"run": config.run.name, "process": process}}])
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.rename(path)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            if path.read_text() == text:  # else the process was started again, and this is the new one's
                path.unlink()


def _target(config: Config, process: str) -> Path:
    return config.run.folder / ".prometheus" / f"{process}@{config.run.name}.json"  # neither has an @


def _registry(run: str, families: Families):
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Collector(run, families))
    return registry


class _Collector:
    """Families as prometheus_client knows them."""

    def __init__(self, run: str, families: Families):
        self._run, self._families = run, families

    def describe(self) -> list:
        return []  # else a registration would scrape

    def collect(self) -> Iterator:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
        for kind, name, help, samples in self._families():
            samples = list(samples)
            names = ["run", *(samples[0][0] if samples else ())]
            family = kinds[kind](name, help, labels=names)
            for labels, value in samples:
                values = [self._run, *labels.values()]
                if kind == "histogram":
                    buckets = [
                        ("+Inf" if bound == float("inf") else f"{bound:g}", n) for bound, n in value.counts.items()
                    ]
                    family.add_metric(values, buckets, value.sum)
                else:
                    family.add_metric(values, value)
            yield family
