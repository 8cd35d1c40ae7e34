"""Version 0 of a run, made once: the model, traces of a script or a teacher, a fine-tuning on them.

    cold-start   imports torch ─▶ model/ ─────────────────────▶ waits ─▶ fine-tunes ─▶ weights/0
                                     ├────▶ traces waits ─▶ plays ─▶ traces.bin ─┘
                                     │        └ with a teacher that is a folder: SGLang serves it meanwhile
                                     └────▶ engines can start, once no teacher needs their GPUs

Both processes are started at once, because half of their time is imports; each waits for what the other one makes.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from pipeline import jsonl, programs, traces_of, weights
from pipeline.config import Config
from pipeline.data import check_files
from pipeline.engine_processes import answers, engine_processes, wait_until_up
from pipeline.environment_rules import check_environment
from pipeline.errors import ConfigError
from pipeline.model_folder import check_model_folder, check_one_tokenizer, check_text_model, gguf_file
from pipeline.supervisor import Supervisor

LONGEST_S = 24 * 3600.0  # of traces, and of fine-tuning
Step = Callable[[str], AbstractContextManager]


def check(config: Config) -> None:
    """Find out at once what would fail in a process of the run, after minutes. Raises ConfigError."""
    if config.model.path is not None:
        check_model_folder(config.model.path, config.rollout.context_length)
        check_text_model(config.model.path)
    if config.model.gguf is not None:
        gguf_file(config.model.gguf)
    check_files(config)
    check_environment(config.environment)
    if config.cold_start is None or weights.published(config.folder / "weights"):
        return
    traces_of.check(config)
    if not _traces_wanted(config):
        return
    for url in config.cold_start.teacher_urls:
        if not answers(url):
            raise ConfigError(f"cold_start.teacher: no SGLang server answers at {url}; start it, or mend the address")
    if (teacher := config.cold_start.teacher_folder) is not None:
        check_model_folder(teacher, config.rollout.context_length, "cold_start.teacher")
        if config.model_path.is_dir():
            check_one_tokenizer(teacher, config.model_path)


def make(
    config: Config,
    supervisor: Supervisor,
    step: Step,
    model_is_there: Callable[[], None] = lambda: None,
) -> None:
    """What is there already is not made again. step(title): what a step is shown with. Raises ProcessFailed."""
    if weights.published(config.folder / "weights"):  # version 0 itself may have been outlived by newer ones
        model_is_there()
        return
    cold_start, traces = supervisor.start(programs.cold_start(config)), None
    to_serve = _traces_wanted(config) and config.cold_start.teacher_folder is not None
    if _traces_wanted(config) and not to_serve:
        traces = supervisor.start(programs.traces(config))
    model = config.model_path / "config.json"
    if not model.exists():
        with step("model made of its GGUF file" if config.model.gguf else "model made on the spot"):
            supervisor.wait_until(model.exists, cold_start.program, LONGEST_S)
    if to_serve:
        with _served_teacher(config, supervisor, step) as urls, step("traces of the teacher"):
            teacher = supervisor.start(programs.traces(config, urls))
            supervisor.wait_until(lambda: not teacher.running, teacher.program, LONGEST_S)
    model_is_there()
    if traces is not None:
        with step("traces for the cold start"):
            supervisor.wait_until(lambda: not traces.running, traces.program, LONGEST_S)
    with step("cold start" if config.cold_start else "version 0"):
        supervisor.wait_until(lambda: not cold_start.running, cold_start.program, LONGEST_S)


def summary(config: Config) -> dict[str, Any]:
    """Version 0, and what it came of: the traces' counts and the last line of its fine-tuning."""
    folder = config.folder / "weights" / "0"
    found = {"run": config.run.name, "weights": str(folder), "digest": weights.read_manifest(folder).digest[:16]}
    with contextlib.suppress(FileNotFoundError):
        found["traces"] = json.loads((config.folder / "traces.json").read_text())
    if lines := jsonl.read(config.folder / "cold_start.jsonl"):
        found["fine_tuning"] = lines[-1]
    return found


def _traces_wanted(config: Config) -> bool:
    if config.cold_start is None or weights.published(config.folder / "weights"):
        return False
    return not (config.folder / "traces.bin").exists()


@contextlib.contextmanager
def _served_teacher(config: Config, supervisor: Supervisor, step: Step) -> Iterator[list[str]]:
    """The teacher's folder on the engines' GPUs, for the time being; gives the servers' URLs."""
    teacher = config.cold_start.teacher_folder
    check_one_tokenizer(teacher, config.model_path)  # of a model that was made only now
    engines = engine_processes(config, "teacher", teacher)
    for engine in engines:
        supervisor.start(engine.program)
    try:
        with step("SGLang with the teacher"):
            wait_until_up(engines, supervisor, config.engines.start_timeout_s)
        yield [engine.url for engine in engines]
    finally:
        supervisor.stop([engine.name for engine in engines])
