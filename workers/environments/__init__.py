"""What an episode is about: an environment answers the model's replies and scores the last one.

    reset(prompt, seed) ──▶ Turn(messages)                      the conversation so far: system and user messages
    step(reply)         ──▶ Turn(messages)                      what the model sees next: tool or user messages
    step(reply)         ──▶ Turn([], reward=1.0, done=True)     the end

A user's own environment is one small class, named in the run's file as "path/to/file.py:Class" or "module:Class":

    from workers.environments import Environment, Turn

    class GuessTheNumber(Environment):
        async def reset(self, prompt, seed):
            self.secret = prompt["number"]
            return Turn([{"role": "user", "content": prompt["question"]}])

        async def step(self, reply):
            if reply.strip() == str(self.secret):
                return Turn([], reward=1.0, done=True)
            return Turn([{"role": "user", "content": "no"}])

What it raises is a failure of the episode, not a reward of 0: the prompt is given back and tried again.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import config
from pipeline.environment_rules import BUILT_IN, FORMS
from pipeline.errors import ConfigError


@dataclass(frozen=True)
class Turn:
    """messages: what to append to the conversation, [{"role", "content"}, …]. reward: any finite number, set when done.
    metrics: numbers by name, summed over the turns; `outcome` in [0, 1] there replaces the reward as evidence."""

    messages: list[dict[str, Any]]
    reward: float | None = None
    done: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


class Environment:
    """One episode. `tools`: JSON schemas of the tools, for the chat template; [environment] options go to __init__."""

    tools: Sequence[dict[str, Any]] = ()

    async def reset(self, prompt: dict[str, Any], seed: int) -> Turn:
        """Begin with a prompt (its record as data.py made it); equal seeds begin equal episodes."""
        raise NotImplementedError

    async def step(self, reply: str) -> Turn:
        """Answer the model's reply, given without its end token."""
        raise NotImplementedError

    async def close(self) -> None:
        """Called once, however the episode ended."""

    def demonstrate(self) -> str | None:
        """The reply of a teacher to the present turn, for the cold start; None: it knows none."""
        return None

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: config.Environment) -> AsyncIterator[Callable[[], "Environment"]]:
        """Entered once a worker, for what all its episodes share; gives a function that makes an episode's."""
        yield lambda: cls(**settings.options)


def opening(prompt: dict[str, Any], instructions: str = "") -> list[dict[str, Any]]:
    """The first messages of an episode: the prompt's own `messages`, or its question as the user's; the instructions
    are the system's, before what the prompt has the system say."""
    messages = prompt.get("messages") or [{"role": "user", "content": prompt["question"]}]
    if not instructions:
        return messages
    first, rest = messages[0], messages[1:]
    if first["role"] != "system":
        return [{"role": "system", "content": instructions}, *messages]
    return [{"role": "system", "content": f"{instructions}\n\n{first['content']}"}, *rest]


@asynccontextmanager
async def open_environment(settings: config.Environment) -> AsyncIterator[Callable[[], Environment]]:
    """The class that [environment] names, opened and tried once. Raises ConfigError."""
    kind = load(settings.name)
    async with kind.open(settings) as make:
        try:
            await make().close()
        except Exception as error:
            raise ConfigError(
                f"environment.name = {settings.name!r}: {kind.__name__}(**options) with environment.options = "
                f"{settings.options} raised {type(error).__name__}: {error}"
            ) from error
        yield make


def load(name: str) -> type[Environment]:
    """The class behind a built-in name, "path/to/file.py:Class" or "module:Class". Raises ConfigError."""
    place = f"environment.name = {name!r}"
    source, separator, attribute = BUILT_IN.get(name, name).rpartition(":")
    if not separator or not source or not attribute:
        raise ConfigError(f"{place}: expected {FORMS}")
    try:
        module = _load_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except FileNotFoundError:
        raise ConfigError(f"{place}: no file {source} in {Path.cwd()}") from None
    except Exception as error:
        raise ConfigError(f"{place}: importing {source} raised {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if found is None:
        classes = [n for n, v in vars(module).items() if inspect.isclass(v) and issubclass(v, Environment)]
        raise ConfigError(f"{place}: {source} has no {attribute}; environments in it: {', '.join(classes) or 'none'}")
    if not (inspect.isclass(found) and issubclass(found, Environment)):
        raise ConfigError(f"{place}: {attribute} is not a subclass of workers.environments.Environment")
    return found


def _load_file(path: Path) -> Any:
    path = path.resolve(strict=True)
    name = f"headrace_environment_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
