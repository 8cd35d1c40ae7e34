"""Does an environment keep what a run expects of it? Episodes are played with replies of every kind; each rule says.

    headrace environments check mine.py:Mine --data problems.jsonl        one line a rule; exit code 1 if one is broken

    from workers.environments.conformance import assert_conforms          the same in a test of your own
    def test_my_environment_conforms():
        assert_conforms("mine.py:Mine", problems=[{"id": "1", "question": "…", "answer": "…"}])

Replies are what the environment demonstrates, calls of its tools with arguments of the right and of the wrong type,
answers in every usual dress, and junk; they are drawn from a seed, so that the same check says the same.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from pipeline import config
from workers.chat import Chat
from workers.environments import open_environment
from workers.environments.conformance.rules import BEGIN, RULES
from workers.environments.conformance.trial import Trial

PROBLEM = {"id": "example-1", "question": "What is 2 + 2?", "answer": "4"}
PROBLEMS = 4  # of those given; more would only say the same


async def check(
    settings: config.Environment, problems: Sequence[dict[str, Any]] = (PROBLEM,), chat: Chat | None = None
) -> dict[str, str]:
    """What breaks each rule, by the rule's sentence; "" for one that is kept. Where episodes
    cannot even begin, nothing is said of the others. chat: whose template shows the messages.

    Raises ConfigError for an environment that cannot even be loaded.
    """
    found = {}
    async with open_environment(settings) as make:
        trial = Trial(settings, make, list(problems)[:PROBLEMS], chat)
        for rule in RULES:
            try:
                async with asyncio.timeout(settings.episode_timeout_s):
                    broken = await rule(trial)
            except TimeoutError:
                broken = f"not known after environment.episode_timeout_s = {settings.episode_timeout_s:g}"
            found[rule.__doc__] = broken or ""
            if broken and rule in BEGIN:
                break
    return found


def assert_conforms(name: str, problems: Sequence[dict[str, Any]] = (PROBLEM,), **settings: Any) -> None:
    """For a test: AssertionError with every broken rule. settings: of [environment], such as options={…}."""
    found = asyncio.run(check(config.Environment(name=name, **settings), problems))
    broken = [f"{rule}: {what}" for rule, what in found.items() if what]
    assert not broken, f"{name}:\n" + "\n".join(broken)
