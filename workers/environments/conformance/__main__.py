"""`headrace environments check FILE.py:Class`: one line a rule; exit code 1 if one is broken."""

import argparse
import asyncio
import json
import sys
import tomllib
from pathlib import Path

from pipeline import config, data
from pipeline.errors import ConfigError
from pipeline.program import run
from workers.chat import Chat
from workers.environments.conformance import PROBLEM, check


def main() -> None:
    parser = argparse.ArgumentParser(prog="headrace environments check", description=__doc__.splitlines()[0])
    parser.add_argument("name", metavar="FILE.py:Class", help="or a built-in environment's name")
    parser.add_argument("--data", type=Path, help="problems, as data.path takes them")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of environment.options")
    parser.add_argument("--max-turns", type=int, default=4)
    parser.add_argument("--model", type=Path, help="a folder, whose chat template is tried as well")
    parser.add_argument("--json", action="store_true", help="an object: what breaks each rule, or an empty text")
    arguments = parser.parse_args()
    try:
        options = tomllib.loads("\n".join(arguments.option))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--option {' '.join(arguments.option)}: expected KEY=VALUE in TOML: {error}") from None
    settings = config.Environment(name=arguments.name, options=options, max_turns=arguments.max_turns)
    problems = data.file_problems(arguments.data) if arguments.data else [PROBLEM]
    found = asyncio.run(check(settings, problems, Chat(arguments.model) if arguments.model else None))
    if arguments.json:
        print(json.dumps(found))
    else:
        for rule, broken in found.items():
            print(f"{'BAD ' if broken else 'ok  '}{rule}{f': {broken}' if broken else ''}")
        if not arguments.data and any(found.values()):
            print(f"played with {json.dumps(PROBLEM)}; give problems of your own with --data FILE")
    sys.exit(1 if any(found.values()) else 0)


if __name__ == "__main__":
    run(main)
