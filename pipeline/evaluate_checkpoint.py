"""`headrace eval CHECKPOINT`: held-out success of one folder of weights, on an engine that serves nothing else.

weights/30-3f9a or 30 ──▶ SGLang, loaded and verified ──▶ python -m workers.evaluate eval ──▶ {"success", …}
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from pipeline import programs
from pipeline.config import Config
from pipeline.data import check_files
from pipeline.engine_processes import engine_processes, load_version, wait_until_up
from pipeline.errors import ConfigError, HeadraceError
from pipeline.run_folder import find_run
from pipeline.supervisor import Supervisor, log_end
from pipeline.weights import MANIFEST, published, read_manifest

TIMEOUT_S = 3600


def evaluate(checkpoint: str, run: str | None, engine_url: str | None = None) -> dict[str, Any]:
    """Success on the held-out problems of the run that `checkpoint`, a path or a version's number, belongs to.

    engine_url: of an idle SGLang server, which is given the weights; None: one is started for it.
    """
    path = Path(checkpoint)
    if run is None and (path.parent.parent / "run.toml").is_file():
        run = str(path.parent.parent)
    config = find_run(run)
    if config.eval.data is None:
        raise ConfigError(f"the run {config.run.name!r} has no [eval.data]: it has no held-out problems")
    folder = _weights(config, checkpoint)
    check_files(config)
    about = {"run": config.run.name, "version": read_manifest(folder).version, "weights": str(folder)}
    supervisor = Supervisor()
    try:
        url = engine_url or _start_engine(config, supervisor)
        load_version(url, folder, config)
        return about | _score(config, url)
    finally:
        supervisor.stop()


def _start_engine(config: Config, supervisor: Supervisor) -> str:
    one = config.model_copy(update={"engines": config.engines.model_copy(update={"count": 1, "urls": [], "port": 0})})
    (engine,) = engine_processes(one, "eval-engine")  # its own log: the run may be up, with an engine-0 of its own
    supervisor.start(engine.program)
    wait_until_up([engine], supervisor, config.engines.start_timeout_s)
    return engine.url


def _weights(config: Config, checkpoint: str) -> Path:
    if (Path(checkpoint) / MANIFEST).is_file():
        return Path(checkpoint)
    known = published(config.folder / "weights")
    for folder in known:
        if checkpoint in (folder.name, folder.name.partition("-")[0]):
            return folder
    names = ", ".join(folder.name for folder in known) or "none"
    raise ConfigError(f"no weights {checkpoint!r} of the run {config.run.name!r}; there are {names}")


def _score(config: Config, url: str) -> dict[str, Any]:
    """The worker's process writes one line of JSON; it is in our process group, and Ctrl-C reaches it."""
    argv = [*programs.PYTHON, "-m", "workers.evaluate", "eval", str(programs.run_toml(config)), "--engine", url]
    log, variables = programs.log_of(config, "eval"), programs.inherited(programs.environment())
    with log.open("ab") as errors:
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, timeout=TIMEOUT_S, env=variables
            )
        except subprocess.TimeoutExpired:
            raise HeadraceError(f"the evaluation took longer than {TIMEOUT_S} s{log_end(log)}") from None
    if done.returncode:
        raise HeadraceError(f"the evaluation exited with {done.returncode}{log_end(log)}")
    return json.loads(done.stdout.splitlines()[-1])
