"""Version 0 of a run, made once: the model, scripted traces of its environment, a short fine-tuning on them.

    cold-start   imports torch ─▶ model/ ─────────────────────▶ waits ─▶ fine-tunes ─▶ weights/0
                                     └────▶ traces waits ─▶ plays ─▶ traces.bin ─┘
                                     └────▶ engines can start

Both processes are started at once, because half of their time is imports; each waits for what the other one makes.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from pipeline import programs, weights
from pipeline.config import Config
from pipeline.supervisor import Supervisor

LONGEST_S = 24 * 3600.0  # of fine-tuning; cold_start.max_steps bounds it more closely


def make(
    config: Config,
    supervisor: Supervisor,
    step: Callable[[str], AbstractContextManager],
    model_is_there: Callable[[], None] = lambda: None,
) -> None:
    """What is there already is not made again. step(title): what a step is shown with. Raises ProcessFailed."""
    if weights.published(config.folder / "weights"):  # version 0 itself may have been outlived by newer ones
        model_is_there()
        return
    cold_start = supervisor.start(programs.cold_start(config))
    traces = None
    if config.cold_start is not None and not (config.folder / "traces.bin").exists():
        traces = supervisor.start(programs.traces(config))
    model = config.model_path / "config.json"
    if not model.exists():
        with step("model made of its GGUF file" if config.model.gguf else "model made on the spot"):
            supervisor.wait_until(model.exists, cold_start.program, LONGEST_S)
    model_is_there()
    if traces is not None:
        with step("traces for the cold start"):
            supervisor.wait_until(lambda: not traces.running, traces.program, LONGEST_S)
    with step("cold start" if config.cold_start else "version 0"):
        supervisor.wait_until(lambda: not cold_start.running, cold_start.program, LONGEST_S)
