"""A reward that another model gives: each reply is graded over HTTP, by any server that speaks OpenAI's chat API.

    environment.options = { url = "http://judge:8000/v1/chat/completions", model = "judge-7b" }

A judge that cannot be reached, or does not give a grade, makes the episode a failure, which is played again: a reward
of 0 would teach the policy that whatever it said just then was wrong. All waiting is bounded: a request by
REQUEST_S, an episode's requests together by ATTEMPTS, and the step by environment.step_timeout_s above that.
"""

import asyncio
import json
import re
from contextlib import asynccontextmanager

import aiohttp

from workers.environments import Environment, Turn, opening

REQUEST_S, ATTEMPTS, PAUSE_S = 15.0, 3, 0.5
GRADE = re.compile(r"10|\d")
# The reply as a JSON string: whatever it says, it cannot seem to end and to be followed by other instructions.
ASK = (
    "Question:\n{question}\n\nReply, as a JSON string:\n{reply}\n\n"
    "Grade the reply from 0 (useless) to 10 (perfect): the number alone."
)


class JudgeFailed(Exception):
    """No grade after ATTEMPTS requests."""


class ModelJudge(Environment):
    def __init__(self, http, url, model, instructions=""):
        self.http, self.url, self.model, self.instructions = http, url, model, instructions

    @classmethod
    @asynccontextmanager
    async def open(cls, settings):
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(REQUEST_S)) as http:  # all episodes share it
            yield lambda: cls(http, **settings.options)

    async def reset(self, prompt, seed):
        self.question = prompt["question"]
        return Turn(opening(prompt, self.instructions))

    async def step(self, reply):
        return Turn([], reward=await self._grade(reply), done=True)

    async def _grade(self, reply):
        failure = None
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(PAUSE_S * 2**attempt)
            try:
                said = await self._ask(ASK.format(question=self.question, reply=json.dumps(reply)))
                if GRADE.fullmatch(said.strip()):
                    return int(said) / 10
                failure = f"it answered {said!r:.80}, without a grade"
            except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError, AttributeError) as error:
                failure = f"{type(error).__name__}: {error}"
        raise JudgeFailed(f"{self.url}: {failure}")

    async def _ask(self, text):
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "temperature": 0}
        async with self.http.post(self.url, json=body, raise_for_status=True) as answer:
            return (await answer.json())["choices"][0]["message"]["content"]
