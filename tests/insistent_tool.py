"""Math with a tool, for a model that has learned nothing yet: several turns with real calls of the sandbox."""

from workers.environments import Turn
from workers.environments.math_tool import MathTool


class InsistentTool(MathTool):
    """Whatever the model replies, the demonstration's call is run, and the model sees what it printed.

    Reward: whether the newest reply has an even number of characters, so that a batch has both.
    """

    async def step(self, reply: str) -> Turn:
        self.observation = None
        turn = await super().step(self.demonstrate())
        return Turn(turn.messages, reward=float(len(reply) % 2 == 0), metrics=turn.metrics)
