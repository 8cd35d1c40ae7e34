"""A tool of one's own: the model looks things up in a table, and answers from what it found.

A problem: {"question": "What is the population of Oslo?", "table": {"Oslo": "724,000", …}, "answer": "724,000"}
"""

from workers.environments import Environment, Turn, opening
from workers.environments.answers import final, tagged
from workers.environments.tool_calls import BadCall, read_calls, write_call

LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "What the table says of a key.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}


class Lookup(Environment):
    tools = (LOOK_UP,)

    async def reset(self, prompt, seed):
        self.problem, self.found = prompt, None
        return Turn(opening(prompt, "Look things up before you answer, between <answer> and </answer>."))

    async def step(self, reply):
        messages = []
        for call in read_calls(reply, self.tools):
            if isinstance(call, BadCall):
                messages.append({"role": "tool", "content": call.problem})
            else:
                self.found = self.problem["table"].get(call.arguments["key"], "nothing")
                messages.append({"role": "tool", "content": self.found})
        if messages:
            return Turn(messages, metrics={"tool_calls": len(messages)})
        return Turn([], reward=float(tagged(final(reply)) == self.problem["answer"]), done=True)

    def demonstrate(self):  # only for a cold start on scripted traces
        keys = [key for key, value in self.problem["table"].items() if value == self.problem["answer"]]
        return write_call("look_up", key=keys[0]) if self.found is None else f"<answer>{self.found}</answer>"
