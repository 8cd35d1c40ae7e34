"""The tool calls in a reply, in the two forms that models are trained to write.

    <tool_call>                                          <tool_call>
    {"name": "python", "arguments": {"code": "…"}}       <function=python>
    </tool_call>                                         <parameter=code>
                                                         …
    Hermes, Qwen2.5, Qwen3, and what Chat describes      </parameter>
    to a model whose template knows no tools             </function>
                                                         </tool_call>       Qwen3-Coder, Qwen3.5

A reply may hold several calls; they count in the order in which they are written. One that cannot be read, or that
does not fit its tool's schema, is a BadCall: text for the model that says what was expected. A thought calls nothing.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workers.environments.answers import final

OPEN, CLOSE = "<tool_call>", "</tool_call>"
CALL = re.compile(rf"{OPEN}\s*(.*?)\s*{CLOSE}", re.DOTALL)
FUNCTION = re.compile(r"<function=([^>\s]+)>(.*)</function>", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}

Schemas = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Call:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class BadCall:
    problem: str


def read_calls(reply: str, tools: Schemas) -> list[Call | BadCall]:
    """All calls of a reply. tools: JSON schemas, {"type": "function", "function": {"name", "parameters"}}."""
    text = final(reply)
    known = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    found = [_read(call, known) for call in CALL.findall(text)]
    if OPEN in text.rpartition(CLOSE)[2]:
        found.append(BadCall(f"the call does not end with {CLOSE}"))
    return found


def write_call(name: str, **arguments: Any) -> str:
    """A call in the first form, for demonstrations."""
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments})}\n{CLOSE}"


def _read(text: str, known: dict[str, dict[str, Any]]) -> Call | BadCall:
    try:
        name, arguments = _parts(text, known)
    except (ValueError, TypeError, KeyError, RecursionError):
        return BadCall('expected {"name": <function name>, "arguments": <JSON object>}')
    if name not in known:
        return BadCall(f"there is no function {name!r:.80}; there is {', '.join(known)}")
    properties = known[name].get("properties", {})
    if missing := [each for each in known[name].get("required", []) if each not in arguments]:
        return BadCall(f"{name}: the argument {', '.join(missing)} is missing")
    for argument, value in arguments.items():
        if argument not in properties:
            return BadCall(f"{name}: there is no argument {argument!r:.80}; there is {', '.join(properties)}")
        kind = properties[argument].get("type")
        if kind in TYPES and not _is(value, kind):
            return BadCall(f"{name}: expected a JSON {kind} for the argument {argument}")
    return Call(name, arguments)


def _parts(text: str, known: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    if function := FUNCTION.fullmatch(text):
        properties = known.get(function[1], {}).get("properties", {})
        values = PARAMETER.findall(function[2])
        return function[1], {name: _value(value, properties.get(name, {})) for name, value in values}
    call = json.loads(text, strict=False)  # code with real line breaks inside its string is common, and clear
    name, arguments = call["name"], call["arguments"]
    if isinstance(arguments, str):  # as OpenAI's API has them
        arguments = json.loads(arguments, strict=False)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise TypeError
    return name, arguments


def _value(text: str, schema: dict[str, Any]) -> Any:
    """The second form writes strings as they are, and everything else as JSON."""
    if schema.get("type", "string") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text  # refused by its type


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
