"""The same again, bit for bit, with a real SGLang on a CPU: a reply in any company, and a run made twice."""

import csv
import json
import random
import tomllib
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline import jsonl
from pipeline.recipe_files import recipes
from tests.fixtures_sglang import start_server, stop_server
from tests.shell import Shell

SPEC = """
name = "twice"
run = "guess.toml"
seeds = [5]
baseline = "once"

[methods.once]
[methods.again]
"""
RUN = """
run = { name = "guess", total_steps = 3 }
model.tiny = {}
data = { size = 16, tasks.number_guessing = {} }
environment = { name = "number_guessing", max_turns = 4 }
rollout = { max_tokens = 4, context_length = 256, concurrency = 8 }
buffers = { max_staleness = 0, batch_size = 8 }
advantage = { offline_rollouts = 1, sampler = "shuffle" }
optimizer.lr = 1e-3
"""


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory):
    """As the recipe for comparisons has it."""
    arguments = tomllib.loads(recipes()["guessing"].read_text())["engines"]["args"]
    server = start_server(tiny_model, tmp_path_factory.mktemp("deterministic") / "server.log", arguments=arguments)
    yield server
    stop_server(server)


@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_a_reply_has_the_same_bits_alone_and_in_any_company(server):
    chance = random.Random(5)
    prompts = [[chance.randrange(5, 250) for _ in range(chance.choice([7, 20, 33, 130, 400]))] for _ in range(24)]

    def reply(number):
        sampling = {"max_new_tokens": 6 + number % 3, "ignore_eos": True, "sampling_seed": 1000 + number}
        body = {"input_ids": prompts[number], "sampling_params": sampling, "return_logprob": True}
        request = urllib.request.Request(f"{server.url}/generate", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)
        return found["output_ids"], found["meta_info"]["output_token_logprobs"]

    numbers = list(range(len(prompts)))
    alone = [reply(number) for number in numbers]
    for company in (len(prompts), 3):  # 3 rows are what MKL has another kernel for
        with ThreadPoolExecutor(company) as players:
            chance.shuffle(numbers)
            found = dict(zip(numbers, players.map(reply, numbers), strict=True))
        assert [found[number] for number in range(len(prompts))] == alone
    assert len({str(tokens) for tokens, _ in alone}) == len(prompts)


@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_a_run_made_twice_has_the_same_rewards_and_the_same_weights(server, tmp_path):
    shell, folder = Shell(tmp_path), tmp_path / "runs" / "twice"
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "guess.toml").write_text(RUN)
    code, out = shell.headrace("experiment", "spec.toml", f"engines.urls=['{server.url}']")
    assert code == 0, out
    assert "+0.00 (0 of 1 positive)" in out

    rows = list(csv.DictReader((folder / "points.csv").read_text().splitlines()))
    once, again = ([row | {"method": ""} for row in rows if row["method"] == name] for name in ("once", "again"))
    assert once == again and len(once) == 3
    events = (jsonl.read(folder / f"twice.default.{name}.5" / "events.jsonl") for name in ("once", "again"))
    digests = [[event["digest"] for event in of_run if event["kind"] == "published"] for of_run in events]
    assert digests[0] == digests[1] and len(set(digests[0])) == 4
