"""What a policy might say: replies of every kind, for trying an environment.

demonstrated   what the environment itself would say       called     its tools, with arguments that fit
answered       in a box, in tags, as a bare number         miscalled  unknown tools, missing and misfit arguments
                                                           junk       nothing, noise, too much of it, broken markup
"""

import json
import random
from collections.abc import Callable
from typing import Any

from workers.environments import Environment
from workers.environments.tool_calls import write_call

JUNK = ["", " \n", "\x00", "�🙂", "<tool_call>", "</tool_call></think><answer>", r"\boxed{", "[" * 3000, "word " * 5000]
FITTING: dict[str, Any] = {"string": "1 + 1", "integer": 3, "number": 0.5, "boolean": True, "array": [1], "object": {}}

Kind = Callable[[Environment, dict[str, Any], random.Random], str]


def demonstrated(environment: Environment, problem: dict[str, Any], draw: random.Random) -> str:
    said = environment.demonstrate()
    return answered(environment, problem, draw) if said is None else said


def answered(environment: Environment, problem: dict[str, Any], draw: random.Random) -> str:
    answer = draw.choice([problem.get("answer", "yes"), draw.randint(-9, 99)])
    return draw.choice([r"so \boxed{{{}}}", "<answer>{}</answer>", "#### {}", "{}"]).format(answer)


def called(environment: Environment, problem: dict[str, Any], draw: random.Random) -> str:
    if not environment.tools:
        return answered(environment, problem, draw)
    tool = draw.choice(list(environment.tools))["function"]
    properties = tool.get("parameters", {}).get("properties", {})
    arguments = {name: FITTING.get(each.get("type"), "1 + 1") for name, each in properties.items()}
    return write_call(tool["name"], **arguments)


def miscalled(environment: Environment, problem: dict[str, Any], draw: random.Random) -> str:
    names = [tool["function"]["name"] for tool in environment.tools]
    name = draw.choice([*names, "no_such_tool"])
    body = draw.choice(
        [{"name": name, "arguments": {}}, {"name": name, "arguments": {"x": [1]}}, {"name": name}, "text"]
    )
    return f"<tool_call>{json.dumps(body)}</tool_call>"


def junk(environment: Environment, problem: dict[str, Any], draw: random.Random) -> str:
    return draw.choice(JUNK)


KINDS: list[Kind] = [demonstrated, answered, called, miscalled, junk]
