"""A user's own environment, whole: `environment.name = "guess_the_number.py:GuessTheNumber"`.

Its problems are lines of a JSONL file, such as {"question": "Guess a number from 1 to 9.", "number": 7}.
"""

from workers.environments import Environment, Turn


class GuessTheNumber(Environment):
    def __init__(self, hints: bool = True):  # [environment] options = { hints = false }
        self.hints = hints

    async def reset(self, prompt, seed):
        self.number = prompt["number"]
        return Turn([{"role": "user", "content": prompt["question"]}])

    async def step(self, reply):
        if not reply.strip().isdecimal():
            return Turn([], reward=-1.0, done=True, metrics={"outcome": 0, "not_a_number": 1})
        guess = int(reply)
        if guess == self.number:
            return Turn([], reward=1.0, done=True)
        hint = ("higher" if guess < self.number else "lower") if self.hints else "no"
        return Turn([{"role": "user", "content": hint}])
