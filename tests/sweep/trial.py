"""A case on the product: real ledger, coordinator process and worker; engines and trainer play their times.

Redis · tests.sweep.engine · headrace coordinator · python -m workers        processes
here: consume ─▶ fetch ─▶ UPDATE_S ─▶ publish ─▶ checkpoint                  the trainer
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pipeline import events, programs
from pipeline.config import Config
from pipeline.coordinator import Coordinator
from pipeline.redis_client import connect
from pipeline.redis_server import RedisServer
from pipeline.run_folder import open_folder
from pipeline.supervisor import ProcessFailed, Program, Supervisor
from pipeline.weights import write_manifest
from tests.sweep.case import ENGINES, LONGEST, PROMPTS, SLOTS, UPDATE_S, UPDATES, Case, Outcome

TRAINER = "trainer"
PATIENCE_S = 60.0
PROBE = list(range(5, 37))
MAKE_MODEL = (
    "import sys; from pathlib import Path; from pipeline.config_sections import TinyModel; "
    "from trainer.tiny import make; "
    "make(Path(sys.argv[1]), TinyModel(), ['reply with 12 letters'], seed=1, context=4096)"
)


def make_model(folder: Path) -> Path:
    """For its tokenizer; in a process of its own, which imports torch."""
    subprocess.run([sys.executable, "-c", MAKE_MODEL, str(folder / "model")], check=True)
    return folder / "model"


def play(case: Case, folder: Path, model: Path) -> Outcome:
    """Raises ProcessFailed, RuntimeError if the run stands still."""
    config = _config(case, folder, model)
    open_folder(config)
    _write_weights(config, 0)
    redis = RedisServer.start(config.folder / "redis")
    try:
        with connect(redis.url) as client, _processes(config, redis.url):
            c = Coordinator(client, config.run.name)
            c.wait_for_run(config.digest, PATIENCE_S)
            trained = _train(c, config)
            return _outcome(c, case, trained)
    finally:
        redis.stop()


@contextmanager
def _processes(config: Config, url: str) -> Iterator[None]:
    variables = {"PYTHONPATH": str(Path.cwd())}
    engine_argv = [sys.executable, "-m", "tests.sweep.engine", str(config.model_path)]
    engines = Program("engines", engine_argv, programs.log_of(config, "engines"), variables, serves=True)
    supervisor = Supervisor()
    try:
        supervisor.start(engines)
        supervisor.wait_until(lambda: "http" in engines.log.read_text(), engines, PATIENCE_S)
        supervisor.start(programs.coordinator(config, url, engines.log.read_text().split()))
        worker = programs.worker(config, "worker-0", url)
        supervisor.start(replace(worker, env={**worker.env, **variables}))
        yield
        if ended := supervisor.check():
            raise ProcessFailed("\n".join(map(str, ended)))
    finally:
        supervisor.stop()


def _train(c: Coordinator, config: Config) -> list[int]:
    """All updates; the tokens of every reply that was trained."""
    trained: list[int] = []
    c.join(TRAINER, 0)
    c.publish(TRAINER, 0, "weights/0", _write_weights(config, 0))
    for version in range(UPDATES):
        refs = _consume(c, version)
        begun = time.monotonic()
        trained += [t.action_tokens for t in c.fetch(refs)]
        digest = _write_weights(config, version + 1)
        time.sleep(max(0.0, begun + UPDATE_S - time.monotonic()))
        c.publish(TRAINER, version + 1, f"weights/{version + 1}", digest)
        c.checkpoint(TRAINER, version + 1)
    return trained


def _consume(c: Coordinator, version: int):
    until, seen = time.monotonic() + PATIENCE_S, c.last_event()
    while (batch := c.consume(TRAINER, version)) is None:
        if time.monotonic() > until:
            raise RuntimeError(f"buffer {version} is not READY after {PATIENCE_S:g} s: {c.status()['waiting']}")
        if found := c.wait(seen, 0.5):
            seen = found[-1].id
    return batch.refs


def _write_weights(config: Config, version: int) -> str:
    """A folder with a manifest and nothing to load; returns its digest."""
    folder = config.folder / "weights" / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    return write_manifest(folder, version, PROBE, [-version / 100] * (len(PROBE) - 1), "float32").digest


def _outcome(c: Coordinator, case: Case, trained: list[int]) -> Outcome:
    """From the ledger's events."""
    found = list(events.newer(c.client, c.run, None))
    begun = [event for event in found if event["kind"] == "reserved"]
    last = next(event for event in found if event["kind"] == "published" and event["version"] == str(UPDATES))
    seconds = (int(last["ms"]) - int(begun[0]["ms"])) / 1000
    return Outcome(seconds, trained, case.lengths[: len(begun)])


def _config(case: Case, folder: Path, model: Path) -> Config:
    problems = folder / f"{case.name}.jsonl"  # of this run alone: others may begin at the same time
    problems.write_text("".join(f'{{"id": "p{n}", "question": "{n}"}}\n' for n in range(PROMPTS)))
    limits = {"max_tokens": LONGEST + 1, "context_length": 2 * LONGEST}
    return Config.model_validate(
        {
            "run": {"name": case.name, "folder": folder, "total_steps": UPDATES},
            "model": {"path": model},
            "data": {"path": problems, "size": PROMPTS},
            "environment": {"name": "tests.sweep.letters:Letters", "options": {"seed": case.seed}},
            "rollout": {"concurrency": ENGINES * SLOTS, "grace_s": 0} | limits,
            "buffers": case.buffers,
            "advantage": {"sampler": "shuffle", "offline_rollouts": 0},
            "publish": {"policy": case.policy, "at_once": not case.in_turns},
            "optimizer": {"lr": 0},
        }
    )
