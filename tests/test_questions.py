"""The README's ten questions: each command runs on a ledger, and answers in the form that the page shows.

    ## Ten questions … 1. How far is it?          $ redis-cli -3 -p PORT HMGET 'hr:{demo}' …    what is sent
                                                  1) "41"                                      what form it has

Names and kinds are compared, not numbers; redis-cli itself is not needed.
"""

import re
import shlex
from pathlib import Path

import pytest
import redis

from pipeline.coordinator import Coordinator
from pipeline.progress import Progress
from tests.fixtures_ledger import trajectory

ROOT = Path(__file__).parent.parent
HEADING = "## Ten questions"
WORKER, TRAINER = "worker-0-087f8a2d", "429b99f1"


def questions():
    """(command, what it printed) of each."""
    text = (ROOT / "README.md").read_text()
    section = text.partition(f"\n{HEADING}")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```\n\$ (.*?)\n(.*?)\n```$", section, re.MULTILINE | re.DOTALL)
    return [pytest.param(command, output, id=command.split(" PORT ")[1][:40]) for command, output in blocks]


@pytest.fixture(scope="module")
def demo(redis_url):
    """A run called demo after one update: entries in flight, a trainer that waits, and a worker; then its client."""
    with redis.Redis.from_url(redis_url, protocol=3) as client:
        c = Coordinator.create(client, "demo", {"batch_size": 4, "max_staleness": 2}, seed=1)
        c.add_prompts([{"id": "products-17"}, *({"id": f"chain_sum-{n}"} for n in range(20))])
        c.register_engine("engine-0", 0, "http://127.0.0.1:30000")
        c.join(TRAINER, 0)
        entries = [c.reserve(WORKER, "engine-0") for _ in range(5)]
        for r in entries:
            c.occupy(r.entry, [trajectory(r, 1.0)])
        c.consume(TRAINER, 0)
        c.publish(TRAINER, 1, "weights/1", "digest")
        c.checkpoint(TRAINER, 1)
        c.register_engine("engine-0", 1)
        Progress(client, "demo", "worker-0", "worker").working(in_flight=3)
        for _ in range(3):
            c.reserve(WORKER, "engine-0")
        Progress(client, "demo", "trainer", "trainer").waiting(c.status()["waiting"])
        client.consumed = entries[0].entry
        yield client
        client.flushdb()


def test_there_are_ten_questions():
    assert len(questions()) == 10


@pytest.mark.parametrize(("command", "output"), questions())
def test_a_command_of_the_page_answers_in_the_form_of_the_page(demo, command, output):
    words = shlex.split(command)
    assert words[0] == "redis-cli" and words[words.index("-p") + 1] == "PORT"
    arguments = words[words.index("PORT") + 1 :]
    if "--eval" in arguments:
        script, key, *rest = arguments[arguments.index("--eval") + 1 :]
        entry = [demo.consumed[:10]] if rest else []
        answer = demo.eval_ro((ROOT / script).read_text(), 1, key, *entry).decode()
    else:
        answer = demo.execute_command(*arguments)
    if isinstance(answer, dict):
        shown = set(re.findall(r'^ *\d+# "([^"]*)" => ', output, re.MULTILINE))
        missing = {form(name) for name in shown} ^ {form(name.decode()) for name in answer}
        assert missing <= OF_A_REAL_WORKER if ":process:worker" in command else not missing
    elif isinstance(answer, list):
        shown = re.findall(r'"([^"]*)"$|\(double\) (\d+)$', output, re.MULTILINE)
        assert [form(text or number) for text, number in shown] == [form(leaf) for leaf in leaves(answer)]
    else:
        text = answer.decode() if isinstance(answer, bytes) else answer
        assert plain_words(output) <= plain_words(text)


# what workers/worker.py reports besides, as it counts
OF_A_REAL_WORKER = {"action_tokens", "stopped", "without_engine", "episodes", "failures", "evaluating", "placed"}
OF_A_REAL_WORKER |= {"tool_calls", "tokens_s"}


def form(value) -> str:
    """What kind of value it is; of a name the name, without its numbers."""
    text = value.decode() if isinstance(value, bytes) else str(value)
    if re.fullmatch(r"-?\d+(\.\d+)?(e[-+]\d+)?", text):
        return "a number"
    if re.fullmatch("(chain_sum|products)-[0-9]+", text):
        return "a prompt"
    return re.sub(r"\d+", "9", re.sub("[0-9a-f]{8,32}", "an id", text))


def leaves(answer):
    """As redis-cli prints them: of a list its items, of a map in it names and values."""
    if isinstance(answer, dict):
        answer = [item for pair in answer.items() for item in pair]
    if isinstance(answer, list | tuple):
        return [leaf for item in answer for leaf in leaves(item)]
    return [answer]


def plain_words(text: str) -> set[str]:
    return {word for word in re.split(r"[\s:;,.()\"]+", text) if re.fullmatch("[a-z_]+", word)}
