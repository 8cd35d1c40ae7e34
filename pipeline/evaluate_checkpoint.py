"""`headrace eval CHECKPOINT`: held-out success of one folder of weights, on an engine started for it alone.

weights/30-3f9a or 30 ──▶ SGLang, loaded and verified ──▶ python -m workers.evaluate eval ──▶ {"success", …}
"""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from pipeline import programs
from pipeline.config import Config
from pipeline.engine_processes import answers, engine_processes, load_version
from pipeline.errors import ConfigError, HeadraceError
from pipeline.run_folder import find_run
from pipeline.supervisor import Supervisor, log_end
from pipeline.weights import MANIFEST, read_manifest

EVAL_TIMEOUT_S = 3600


def evaluate(checkpoint: str, run: str | None) -> dict[str, Any]:
    """Success on the held-out problems of the run that `checkpoint`, a path or a version's number, belongs to."""
    path = Path(checkpoint)
    if run is None and (path.parent.parent / "run.toml").is_file():
        run = str(path.parent.parent)
    config = find_run(run)
    if config.eval.data is None:
        raise ConfigError(f"the run {config.run.name!r} has no [eval.data]: it has no held-out problems")
    folder = _weights(config, checkpoint)
    manifest = read_manifest(folder)
    one = config.model_copy(update={"engines": config.engines.model_copy(update={"count": 1, "urls": [], "port": 0})})
    (engine,) = engine_processes(one)
    supervisor = Supervisor()
    supervisor.start(engine.program)
    try:
        deadline = time.monotonic() + config.engines.start_timeout_s
        while not answers(engine.url):
            for exit in supervisor.check():
                raise HeadraceError(str(exit))
            if time.monotonic() > deadline:
                raise HeadraceError(f"SGLang took too long to start{log_end(engine.program.log)}")
            time.sleep(0.2)
        load_version(engine.url, folder, config)
        return {"run": config.run.name, "version": manifest.version, "weights": str(folder)} | _score(
            config, engine.url
        )
    finally:
        supervisor.stop()


def _weights(config: Config, checkpoint: str) -> Path:
    if (Path(checkpoint) / MANIFEST).is_file():
        return Path(checkpoint)
    known = sorted(path.parent for path in config.folder.glob(f"weights/*/{MANIFEST}"))
    for folder in known:
        if checkpoint in (folder.name, folder.name.partition("-")[0]):
            return folder
    names = ", ".join(folder.name for folder in known) or "none"
    raise ConfigError(f"no weights {checkpoint!r} of the run {config.run.name!r}; there are {names}")


def _score(config: Config, url: str) -> dict[str, Any]:
    argv = [*programs.PYTHON, "-m", "workers.evaluate", "eval", str(programs.run_toml(config)), "--engine", url]
    log = programs.log_of(config, "eval")
    with log.open("ab") as errors:
        # the worker's process ends with us: it is in our process group, and Ctrl-C reaches it
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            timeout=EVAL_TIMEOUT_S,
            env=programs.inherited(programs.environment()),
        )
    if done.returncode:
        raise HeadraceError(f"the evaluation exited with {done.returncode}{log_end(log)}")
    return json.loads(done.stdout.splitlines()[-1])
