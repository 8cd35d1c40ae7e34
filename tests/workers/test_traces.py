import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from pipeline import jsonl, trajectory_file, version_0
from pipeline.errors import ConfigError
from pipeline.trajectory import Trajectory
from tests.workers.fake_sglang import FakeSGLang, answer
from tests.workers.scripts import Scripted, reservation
from workers import kept_traces
from workers.engine import EngineGone
from workers.environments import open_environment
from workers.episode import play
from workers.kept_traces import flaw
from workers.teacher import decoding
from workers.traces import drawn, play_all

CALL = '<tool_call>\n{"name": "python", "arguments": {"code": "print(3 + 4)"}}\n</tool_call>'
SUM = {"id": "sum", "question": "3 + 4 = ?", "answer": "7"}


def traces(config, urls=()) -> list[Trajectory]:
    config.folder.mkdir(parents=True, exist_ok=True)
    problems = drawn(config)
    asyncio.run(play_all(config, problems, urls))
    kept_traces.finish(config, problems)
    return trajectory_file.read(config.folder / "traces.bin")


def summary(config) -> dict:
    return json.loads((config.folder / "traces.json").read_text())


def test_traces_are_verifier_positive_and_masked_like_any_episode(settings, chat):
    config = settings(cold_start={"problems": 30}, rollout={"max_tokens": 48})
    found = traces(config)
    assert len(found) == 30 and len({t.prompt_id for t in found}) == 30
    for t in found:
        assert (t.outcome, t.reward, t.finish_reason, t.metrics["tool_calls"]) == (1.0, 1.0, "stop", 1.0)
        said = [chat.text(t.tokens[start : start + length].tolist()) for start, length, _, _ in t.segments]
        assert said[0].startswith("<tool_call>") and said[1].startswith("<answer>")
        assert (t.rollout_logprobs == 0).all()
        assert all(t.tokens[start + length - 1] == chat.end_token for start, length, _, _ in t.segments)
    assert summary(config) == {
        **{"teacher": [], "episodes": 30, "kept": 30, "not_kept": {}, "problems": 30, "problems_kept": 30},
    }


def test_a_share_of_the_traces_answers_without_the_tool_and_is_right_as_well(settings):
    environment = {"options": {"direct": 0.45}}
    config = settings(
        data={"size": 64}, cold_start={"problems": 100}, environment=environment, rollout={"max_tokens": 48}
    )
    found = traces(config)
    assert {(t.outcome, t.finish_reason) for t in found} == {(1.0, "stop")}
    direct = [t for t in found if t.metrics["turns"] == 1]
    assert {t.metrics["tool_calls"] for t in direct} == {0} and 0.3 < len(direct) / len(found) < 0.6


def test_tasks_without_a_demonstration_are_refused_with_what_to_do(settings, tmp_path):
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"question": f"{n}?", "number": n}) for n in range(3)))
    name = f"{Path(__file__).parent}/guess_the_number.py:GuessTheNumber"
    config = settings(data={"path": str(tmp_path / "p.jsonl"), "tasks": {}}, environment={"name": name}, cold_start={})
    with pytest.raises(ConfigError, match=r"environment 3; .*demonstrate: none for this turn.*remove \[cold_start\]"):
        traces(config)
    assert not (config.folder / "traces.jsonl").exists(), "with a demonstrate() the next attempt plays them"


def test_what_was_played_before_it_was_killed_is_not_played_again_and_changes_nothing(settings):
    config = settings(cold_start={"problems": 30}, rollout={"max_tokens": 48})
    problems = drawn(config)
    uninterrupted = [t.encode() for t in traces(config)]
    (config.folder / "traces.bin").unlink()
    asyncio.run(play_all(config, problems))
    lines = (config.folder / "traces.jsonl").read_bytes().splitlines(keepends=True)
    (config.folder / "traces.jsonl").write_bytes(b"".join(lines[:11]) + lines[11][:40])
    asyncio.run(play_all(config, problems))
    again = (config.folder / "traces.jsonl").read_bytes().splitlines(keepends=True)
    assert again[:11] == lines[:11] and len(again) == 30
    kept_traces.finish(config, problems)
    assert [t.encode() for t in trajectory_file.read(config.folder / "traces.bin")] == uninterrupted


def test_a_cold_start_that_keeps_nothing_stops_early_and_puts_aside_why(settings):
    one_turn = {"max_turns": 1}  # the script wants one for the tool and one for its answer
    config = settings(cold_start={"problems": 200}, environment=one_turn, rollout={"max_tokens": 48})
    with pytest.raises(
        ConfigError, match=r"no trace of [56]\d problems .*turns \d\d; the best outcome is 0, kept is 1"
    ):
        traces(config)
    aside = jsonl.read(config.folder / "traces.rejected.jsonl")
    assert 50 <= len(aside) < 70 and not (config.folder / "traces.jsonl").exists()


def test_outcomes_that_never_reach_1_are_named_as_the_reason(settings, chat):
    config = settings(cold_start={"problems": 2})
    config.folder.mkdir(parents=True)
    for problem, best in zip(drawn(config), (0.5, 0.75), strict=True):
        line = {"id": problem["id"], "kept": [], "flaws": {"wrong": 8}, "best": best, "failure": None}
        jsonl.append(config.folder / "traces.jsonl", line)
    with pytest.raises(
        ConfigError, match=r"\(wrong 16; the best outcome is 0.75, kept is 1 alone; a line a problem in"
    ):
        kept_traces.finish(config, drawn(config))


def test_traces_of_two_teachers_are_not_mixed(settings):
    config = settings(cold_start={"problems": 3}, rollout={"max_tokens": 48})
    config.folder.mkdir(parents=True)
    asyncio.run(play_all(config, drawn(config)))
    before = (config.folder / "traces.jsonl").read_bytes()
    taught = settings(cold_start={"problems": 3, "teacher": "http://127.0.0.1:9"}, rollout={"max_tokens": 48})
    refusal = r"has traces of a script, .* of http://127.0.0.1:9; delete traces.jsonl"
    with pytest.raises(ConfigError, match=refusal):
        asyncio.run(play_all(taught, drawn(taught), taught.cold_start.teacher_urls))
    with pytest.raises(ConfigError, match=refusal):
        version_0.check(taught)
    assert (config.folder / "traces.jsonl").read_bytes() == before
    kept_traces.finish(config, drawn(config))
    with pytest.raises(ConfigError, match=r"delete traces\.bin there, or set it back"):
        version_0.check(taught)
    version_0.check(config)


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        ([CALL, "<answer>7</answer>"], None),
        (["<answer>7</answer>"], None),
        ([CALL, "<answer>8</answer>"], "wrong"),
        ([CALL, "it is seven"], "no_answer"),
        (["<tool_call>{]</tool_call>"], "malformed_calls"),
        ([CALL, "<answer>7</answer>…"], "length"),
        ([CALL, "<answer>7</answer>|"], "stop_string"),
        ([f"{CALL}…", "<answer>7</answer>"], "cut"),
        ([CALL, CALL, CALL], "turns"),
        ([""], "empty"),
    ],
)
def test_a_trace_is_kept_if_it_is_right_and_whole_and_else_a_word_says_why_not(settings, chat, replies, said):
    config = settings(rollout={"max_tokens": 64})
    assert flaw(asyncio.run(played(config, chat, *replies)), chat) == said


def test_with_failures_what_is_whole_is_kept_whatever_it_earned(settings, chat):
    config = settings(rollout={"max_tokens": 64})
    found = {reply: asyncio.run(played(config, chat, CALL, reply)) for reply in ("<answer>8</answer>", "it is seven")}
    assert [flaw(t, chat, failures=True) for t in found.values()] == [None, "no_answer"]


async def played(config, chat, *replies):
    async with open_environment(config.environment) as make:
        return await play(reservation(json.dumps(SUM).encode()), make(), Scripted(chat, *replies), chat, config)


def test_a_token_that_the_models_tokenizer_does_not_know_is_no_trace(settings, chat):
    config = settings(cold_start={"problems": 20}, rollout={"max_tokens": 48})
    t = traces(config)[0]
    tokens = np.array(t.tokens)
    tokens[t.segments[0].start] = len(chat.tokenizer)
    object.__setattr__(t, "tokens", tokens)
    assert flaw(t, chat) == "unknown_token"


def test_a_teacher_samples_with_its_own_settings_and_ends_replies_as_the_run_does(settings, chat):
    parameters = decoding(settings(cold_start={}, rollout={"stop": ["</tool_call>"], "temperature": 1.0}), chat)
    assert parameters == {
        **{"temperature": 0.6, "top_p": 0.95, "top_k": 20},
        **{"stop_token_ids": [chat.end_token], "stop": ["</tool_call>"]},
    }


@pytest.mark.sglang
def test_a_teacher_plays_each_problem_several_times_and_its_failures_are_counted_by_reason(settings, sglang):
    """The tiny model is random: it solves nothing."""
    config = settings(cold_start={"problems": 20, "rollouts": 3, "teacher": [sglang.url]}, rollout={"max_tokens": 8})
    config.folder.mkdir(parents=True)
    problems = drawn(config)
    asyncio.run(play_all(config, problems, [sglang.url]))
    lines = jsonl.read(config.folder / "traces.jsonl")
    assert sorted(line["id"] for line in lines) == sorted(problem["id"] for problem in problems)
    assert all(sum(line["flaws"].values()) + len(line["kept"]) == 3 for line in lines)
    with pytest.raises(ConfigError, match=r"no trace of 20 problems .* \(.*length \d+.*a teacher that solves some"):
        kept_traces.finish(config, problems)


@pytest.mark.sglang
def test_a_teacher_with_another_tokenizer_is_refused_before_it_plays(settings, sglang, tmp_path):
    from tests.fixtures_sglang import make_model

    other = make_model(
        tmp_path / "other", ["What is the sum of all numbers?", "Tell me the sum of these numbers"], 1024
    )
    config = settings(cold_start={"teacher": [sglang.url]}, model={"path": str(other)})
    with pytest.raises(ConfigError, match=r"has another tokenizer than the model in .*: '.*' is \[.*\] there"):
        traces(config, [sglang.url])
    assert not (config.folder / "traces.jsonl").exists()


def test_a_teacher_that_is_not_there_is_refused_at_once(settings):
    with pytest.raises(ConfigError, match=r"expected an SGLang server at http://127\.0\.0\.1:9 that tokenizes"):
        traces(settings(cold_start={"teacher": ["http://127.0.0.1:9"]}), ["http://127.0.0.1:9"])


def test_when_a_rollout_fails_for_good_the_others_have_ended_before_it_is_told(settings, chat, monkeypatch):
    monkeypatch.setattr("workers.traces.PAUSES_S", (0.1,))
    monkeypatch.setattr("workers.teacher.Teacher.check_tokenizer", lambda *_: asyncio.sleep(0))
    config = settings(cold_start={"problems": 1}, rollout={"concurrency": 1})
    config.folder.mkdir(parents=True)

    async def main():
        async with FakeSGLang(lambda request: "drop").serving() as server:
            before = asyncio.all_tasks()
            with pytest.raises(EngineGone):
                await play_all(config, drawn(config), [server.url])
            return [task for task in asyncio.all_tasks() - before if "trace" in task.get_coro().__qualname__]

    assert asyncio.run(main()) == []


def test_a_teacher_that_goes_away_is_asked_again_and_then_ends_it(settings, chat, monkeypatch):
    monkeypatch.setattr("workers.traces.PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr("workers.teacher.Teacher.check_tokenizer", lambda *_: asyncio.sleep(0))
    faults = [*["drop"] * 2, answer("whatever it is called", chat.encode("<answer>"))]
    config = settings(cold_start={"problems": 1}, rollout={"concurrency": 1})
    config.folder.mkdir(parents=True)

    async def main(script):
        async with FakeSGLang(script).serving() as server:
            problems = drawn(config)
            await play_all(config, problems, [server.url])

    asyncio.run(main(lambda request: faults.pop(0) if len(faults) > 1 else faults[0]))
    assert len(jsonl.read(config.folder / "traces.jsonl")) == 1 and len(faults) == 1
    (config.folder / "traces.jsonl").unlink()
    with pytest.raises(EngineGone):
        asyncio.run(main(lambda request: "drop"))
