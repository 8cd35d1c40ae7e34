"""The rules of an environment, one function each; its docstring is the rule, what it returns is what breaks it."""

import asyncio
import json
import math
import random
from contextlib import suppress

from pipeline.errors import ConfigError
from workers.environments import Turn
from workers.environments.conformance.replies import KINDS
from workers.environments.conformance.trial import SEEDS, Episode, Trial, close, copy
from workers.episode import CLOSE_S
from workers.transcript import Transcript

BLOCKED_S = 0.1  # a call, on average, that no other episode of the worker can use


async def tools_are_schemas(trial: Trial) -> str | None:
    """tools are JSON schemas of functions"""
    environment = trial.make()
    await close(environment)
    for tool in environment.tools:
        try:
            json.dumps(tool)
            known = tool["type"] == "function" and isinstance(tool["function"]["name"], str)
        except (TypeError, KeyError, ValueError):
            known = False
        if not known:
            return f'expected {{"type": "function", "function": {{"name", "parameters"}}}}, found {tool!r:.120}'
    return None


async def resets(trial: Trial) -> str | None:
    """reset begins a conversation that the model is to answer"""
    for played in await trial.episodes():
        if not played.turns:
            return played.error
        first = played.turns[0]
        if first.done:
            return "reset gave a turn that is done"
        if not first.messages or first.messages[-1].get("role") != "user":
            return f"expected messages whose last one is the user's, found {first.messages!r:.120}"
    return None


async def repeats(trial: Trial) -> str | None:
    """equal seeds begin equal episodes"""
    for problem in trial.problems:
        for seed in SEEDS:
            first, second = [await trial.play(problem, seed, [], random.Random(0)) for _ in range(2)]
            if first.turns != second.turns:
                return f"seed {seed}: {first.turns!r:.100} and then {second.turns!r:.100}"
    return None


async def messages_are_well_formed(trial: Trial) -> str | None:
    """messages are what a chat template takes: a known role and text; after reset the tool's or the user's"""
    for played in await trial.episodes():
        for number, turn in enumerate(played.turns):
            known = ("tool", "user") if number else ("system", "user", "assistant", "tool")
            for message in turn.messages:
                role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (0, 0)
                if role not in known or not isinstance(content, str):
                    return f'expected {{"role": one of {", ".join(known)}, "content": text}}, found {message!r:.120}'
            if number and not turn.done and not turn.messages:
                return f"step({played.replies[number - 1]!r:.60}) is not done and has nothing for the model to see"
    return None


async def the_template_shows_them(trial: Trial) -> str | None:
    """with --model, its chat template shows the tools and every message"""
    if trial.chat is None:
        return None
    environment = trial.make()
    await close(environment)
    try:
        for played in await trial.episodes():
            for number, turn in enumerate(played.turns):
                if number and turn.messages:
                    trial.chat.extend(turn.messages)
                elif not number:
                    trial.chat.prompt(turn.messages, environment.tools)
    except (ConfigError, ValueError, TypeError) as error:
        return str(error)
    return None


async def any_reply_is_answered(trial: Trial) -> str | None:
    """any reply is answered: what a model says is never an error"""
    return next((played.error for played in await trial.episodes() if played.turns and played.error), None)


async def judged(trial: Trial) -> str | None:
    """a reward is finite and there when done, the outcome in [0, 1], metrics are numbers"""
    for played in await trial.episodes():
        transcript = Transcript()
        for turn in played.turns[1:]:
            try:
                transcript.judge(turn)
                numbers = [float(number) for number in turn.metrics.values()]
            except (ValueError, TypeError) as error:
                return str(error)
            if not all(map(math.isfinite, numbers)):
                return f"expected finite metrics, found {turn.metrics}"
    return None


async def ends(trial: Trial) -> str | None:
    """an episode can be done within environment.max_turns"""
    episodes = await trial.episodes()
    if any(turn.done for played in episodes for turn in played.turns):
        return None
    return (
        f"none of {len(episodes)} was done within {trial.settings.max_turns} turns: raise environment.max_turns, or "
        "say in demonstrate() what ends one"
    )


async def closes(trial: Trial) -> str | None:
    """close may be called at any time: after reset, after the end, in the middle of a step that was cut off"""
    environment = trial.make()
    try:
        await environment.reset(copy(trial.problems[0]), 0)
        step = asyncio.create_task(environment.step("#### 3"))
        await asyncio.sleep(0)
        step.cancel()
        await asyncio.wait([step], timeout=CLOSE_S)
        await close(environment)
    except Exception as error:
        return f"in the middle of a step it raised {type(error).__name__}: {error}"
    unbegun = await trial.play(trial.problems[0], 0, [], random.Random(0))
    return next((played.close_error for played in [unbegun, *await trial.episodes()] if played.close_error), None)


async def episodes_are_apart(trial: Trial) -> str | None:
    """two episodes at once are each what it is alone"""

    for pair in ((0, 1), (2, 3), (4, 5)):
        before = [await _alone(trial, number) for number in pair]
        again = [await _alone(trial, number) for number in pair]
        if any(a.error or a.turns != b.turns for a, b in zip(before, again, strict=True)):
            return None  # it raises anyway, or whoever grades is not the same twice: nothing can be told
        try:
            beside = await _in_turns(trial, before, pair)
        except Exception as error:
            return f"alone they end well, and beside each other one raised {type(error).__name__}: {error}"
        for script, turns in zip(before, beside, strict=True):
            if turns != script.turns:
                return f"{script.turns!r:.200} alone, and {turns!r:.200} beside another one"
    return None


async def _alone(trial: Trial, number: int) -> Episode:
    kinds = [KINDS[(number + at) % len(KINDS)] for at in range(trial.settings.max_turns)]
    return await trial.play(trial.problems[number % len(trial.problems)], number, kinds, random.Random(number))


async def _in_turns(trial: Trial, scripts: list[Episode], seeds: tuple[int, int]) -> list[list[Turn]]:
    """The same episodes again, a turn of one and then a turn of the other."""
    environments = [trial.make() for _ in scripts]
    turns: list[list[Turn]] = [[] for _ in scripts]
    try:
        for number, script in enumerate(scripts):
            turns[number].append(await environments[number].reset(copy(script.problem), seeds[number]))
        for at in range(max(len(script.turns) for script in scripts) - 1):
            for number, script in enumerate(scripts):
                if at + 1 < len(script.turns):
                    turns[number].append(await environments[number].step(script.replies[at]))
    finally:
        for environment in environments:
            with suppress(Exception):  # `closes` is another rule
                await close(environment)
    return turns


async def in_time(trial: Trial) -> str | None:
    """no step takes environment.step_timeout_s, and none holds up the other episodes"""
    episodes = await trial.episodes()
    longest = max((seconds for played in episodes for seconds in played.seconds[1:]), default=0.0)
    if longest >= trial.settings.step_timeout_s:
        return f"the longest took {longest:.1f} s, and environment.step_timeout_s = {trial.settings.step_timeout_s:g}"
    steps = sum(len(played.seconds) for played in episodes)
    blocked = sum(played.blocked for played in episodes) / max(steps, 1)
    if blocked > BLOCKED_S:
        return (
            f"{1000 * blocked:.0f} ms a call nothing else could run: await what takes time, or put it into a thread "
            "(asyncio.to_thread)"
        )
    return None


BEGIN = [tools_are_schemas, resets]  # without these nothing else can be tried
RULES = [
    *BEGIN,
    repeats,
    messages_are_well_formed,
    the_template_shows_them,
    any_reply_is_answered,
    judged,
    ends,
    closes,
    episodes_are_apart,
    in_time,
]
