"""An environment whose problems a random model solves half of the time: a reply is right if its length is even."""

from workers.environments import Environment, Turn


class EvenLength(Environment):
    async def reset(self, prompt, seed):
        return Turn([{"role": "user", "content": prompt["question"]}])

    async def step(self, reply):
        return Turn([], reward=float(len(reply) % 2 == 0), done=True)
