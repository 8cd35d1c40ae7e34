"""A newcomer's own task: one small file beside the run's, checked, then trained with one command; everything real."""

import json

import pytest

from tests.fixtures_sglang import serve
from tests.shell import Shell

NEWCOMER = '''\
"""Say a word with as many of one letter as you can; a second try if it has none."""
from workers.environments import Environment, Turn


class Letters(Environment):
    async def reset(self, prompt, seed):
        self.letter, self.tries = prompt["letter"], 0
        return Turn([{"role": "user", "content": prompt["question"]}])

    async def step(self, reply):
        self.tries += 1
        share = reply.count(self.letter) / len(reply) if reply else 0.0
        if share == 0 and self.tries == 1:
            return Turn([{"role": "user", "content": f"no {self.letter} in it"}])
        return Turn([], reward=share, done=True, metrics={"tries": self.tries})
'''
NEWCOMER_RUN = """\
run = { name = "letters", total_steps = 2 }
model.tiny = {}
data.path = "letters.jsonl"
environment = { name = "letters.py:Letters", max_turns = 2 }
rollout = { concurrency = 16, max_tokens = 8, context_length = 128 }
buffers.batch_size = 8
advantage.offline_rollouts = 1
"""


@pytest.mark.sglang
@pytest.mark.timeout(600)
def test_a_newcomers_own_environment_is_checked_and_trains_with_one_command(sglang, tmp_path):
    """Two files and the run's, none of them in the repository."""
    shell = Shell(tmp_path)
    (tmp_path / "letters.py").write_text(NEWCOMER)
    (tmp_path / "letters.toml").write_text(NEWCOMER_RUN)
    problems = [{"question": f"a word with {letter}?", "letter": letter} for letter in "abcdefghijklmnop"]
    (tmp_path / "letters.jsonl").write_text("\n".join(map(json.dumps, problems)))

    code, out = shell.headrace("environments", "check", "letters.py:Letters", "--data", "letters.jsonl")
    assert code == 0 and "BAD" not in out, out
    try:
        code, out = shell.headrace("up", "letters.toml", f"engines.urls=['{sglang.url}']")
        assert code == 0, out
        lines = [json.loads(line) for line in (tmp_path / "runs/letters/metrics.jsonl").read_text().splitlines()]
        assert [line["version"] for line in lines] == [0, 1]
        assert all(1 <= line["environment"]["tries"] <= 2 for line in lines)
        assert shell.left_over() == []
    finally:
        serve(sglang.url, sglang.model_path)
