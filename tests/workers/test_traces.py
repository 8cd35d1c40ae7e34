import asyncio
import json
from pathlib import Path

import pytest

from pipeline.data import cold_start_problems
from pipeline.errors import ConfigError
from workers.traces import traces


def test_traces_are_verifier_positive_and_masked_like_any_episode(settings, chat):
    config = settings(cold_start={"problems": 30}, rollout={"max_tokens": 48})
    found = asyncio.run(traces(config, cold_start_problems(config)))
    assert len(found) == 30 and len({t.prompt_id for t in found}) == 30
    for t in found:
        assert (t.outcome, t.reward, t.finish_reason, t.metrics["tool_calls"]) == (1.0, 1.0, "stop", 1.0)
        said = [chat.text(t.tokens[start : start + length].tolist()) for start, length, _, _ in t.segments]
        assert said[0].startswith("<tool_call>") and said[1].startswith("<answer>")
        assert (t.rollout_logprobs == 0).all()
        assert all(t.tokens[start + length - 1] == chat.end_token for start, length, _, _ in t.segments)


def test_a_share_of_the_traces_answers_without_the_tool_and_is_right_as_well(settings):
    environment = {"options": {"direct": 0.45}}
    config = settings(
        data={"size": 64}, cold_start={"problems": 100}, environment=environment, rollout={"max_tokens": 48}
    )
    found = asyncio.run(traces(config, cold_start_problems(config)))
    assert {(t.outcome, t.finish_reason) for t in found} == {(1.0, "stop")}
    direct = [t for t in found if t.metrics["turns"] == 1]
    assert {t.metrics["tool_calls"] for t in direct} == {0} and 0.3 < len(direct) / len(found) < 0.6


def test_tasks_without_a_demonstration_are_refused_with_what_to_do(settings, tmp_path):
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"question": f"{n}?", "number": n}) for n in range(3)))
    name = f"{Path(__file__).parent}/guess_the_number.py:GuessTheNumber"
    config = settings(data={"path": str(tmp_path / "p.jsonl"), "tasks": {}}, environment={"name": name}, cold_start={})
    with pytest.raises(ConfigError, match=r"demonstrate: none for this turn.*remove \[cold_start\]"):
        asyncio.run(traces(config, cold_start_problems(config)))
