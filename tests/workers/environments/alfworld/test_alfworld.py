"""Real games in processes of their own, through the episode loop."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import config
from pipeline.data import training_problems
from pipeline.errors import ConfigError
from pipeline.ledger_types import Reservation
from tests.waiting import alive, wait_for
from workers.environments import open_environment
from workers.environments.alfworld import INSTRUCTIONS, AlfWorld
from workers.environments.alfworld.games import GameLost, Games
from workers.environments.conformance import assert_conforms
from workers.episode import EpisodeFailed, play
from workers.traces import Script

ALFWORLD = config.Environment(name="alfworld", max_turns=50, setup_timeout_s=250, step_timeout_s=250)


def played(*scripts):
    """The turns of episodes, one after another: each script is a problem and the replies to it."""

    async def episode(environment, problem, *replies):
        try:
            turns = [await environment.reset(problem, 1)]
            for reply in replies:
                turns.append(await environment.step(reply))
            return turns
        finally:
            await environment.close()

    async def episodes():
        async with open_environment(ALFWORLD) as make:
            return [await episode(make(), *script) for script in scripts]

    return asyncio.run(episodes())


def walkthrough(problem) -> list[str]:
    return json.loads(Path(problem["game"]).read_text())["walkthrough"]


def test_every_task_type_is_won_in_a_process_of_its_own_and_only_then_rewarded(problems):
    scripts = [(problem, *walkthrough(problem)) for problem in problems]
    for problem, (first, *others, last) in zip(problems, played(*scripts), strict=True):
        assert first.messages[0] == {"role": "system", "content": INSTRUCTIONS}
        room, _, task = first.messages[1]["content"].partition("\n\n")
        asked_room, _, asked_task = problem["question"].partition("\n\n")
        assert asked_task.startswith(task)
        assert sorted(re.findall(r"[a-z]+ \d+", room)) == sorted(re.findall(r"[a-z]+ \d+", asked_room))
        assert (last.reward, last.done, last.messages) == (1.0, True, [])
        assert {(turn.reward, turn.done) for turn in others} == {(None, False)}


def test_the_command_is_the_last_line_after_the_thought(problems):
    replies = "I look round.\n look \n", "<think>look", "<think>\nlook</think>inventory", "fly", ""
    (told,) = played((problems[0], *replies))
    assert told[1].messages[0]["content"].startswith("You are in the middle of a room.") and not told[1].metrics
    assert told[3].messages[0]["content"] == "You are not carrying anything."
    for turn in (told[2], told[4], told[5]):
        assert turn.messages == [{"role": "user", "content": "Nothing happens."}]
        assert turn.metrics == {"invalid_commands": 1}


def test_the_expert_wins_an_episode_and_its_trace_has_the_whole_history(settings, chat, problems):
    whole = settings(
        data={"path": str(Path(problems[0]["game"]).parents[2]), "tasks": {}},
        environment=ALFWORLD.model_dump() | {"options": {"instructions": ""}},
        rollout={"max_tokens": 64, "context_length": 4000},
        buffers={"max_age_s": 900},
        trainer={"token_budget": 4096},
    )

    async def traced():
        async with open_environment(whole.environment) as make:
            prompts = training_problems(whole)  # as they lie in Redis, without this machine's paths
            environments = [make() for _ in prompts]
            return await asyncio.gather(
                *(
                    play(Reservation.outside_ledger(p, "entry-1"), e, Script(e, chat), chat, whole)
                    for p, e in zip(prompts, environments, strict=True)
                )
            )

    found = asyncio.run(traced())
    won = [t for t in found if (t.outcome, t.reward, t.finish_reason) == (1.0, 1.0, "stop")]
    assert len(won) >= 4, "the expert does not find everything, but most"
    text = chat.tokenizer.decode(won[0].tokens.tolist())
    assert text.count("Your task is to") == 1 and "You arrive at" in text


def test_a_game_whose_process_is_killed_is_lost_and_the_others_go_on(problems):
    async def killed():
        games = Games()
        try:
            (one, _), (other, _) = [await games.begin(problem["game"], 1) for problem in problems[:2]]
            os.kill(one.pid, signal.SIGKILL)
            with pytest.raises(GameLost, match=r"game.tw-pddl: its process ended without an answer; was it killed"):
                await one.step("look")
            assert (await other.step("inventory")).text == "You are not carrying anything."
            games._server.kill()
            games._server.wait()
            assert (await other.step("inventory")).text == "You are not carrying anything."
            another, seen = await games.begin(problems[0]["game"], 1)
            assert "Your task is to" in seen.text
            for game in (one, other, another):
                game.end()
        finally:
            games.close()

    asyncio.run(killed())


def test_a_server_that_reads_nothing_takes_no_thread_from_the_leases():
    async def full():
        games = Games()
        games._start()
        os.kill(games._server.pid, signal.SIGSTOP)
        begun = [asyncio.create_task(games.begin("a" * 3000, 1)) for _ in range(100)]  # more than fit
        try:
            await asyncio.sleep(0)  # each is on its way
            async with asyncio.timeout(100):
                await asyncio.to_thread(str)
        finally:
            for each in begun:
                each.cancel()
            games.close()
        assert set(map(type, await asyncio.gather(*begun, return_exceptions=True))) == {asyncio.CancelledError}

    asyncio.run(full())


def test_a_process_that_hangs_ends_its_episode_and_is_ended(settings, chat, problems):
    limits = {"name": "alfworld", "max_turns": 50, "setup_timeout_s": 250, "step_timeout_s": 0.5}
    whole = settings(
        data={"path": str(Path(problems[0]["game"]).parents[2]), "tasks": {}},
        environment=limits | {"options": {"instructions": ""}},
        rollout={"max_tokens": 64, "context_length": 1024},
    )
    pids = []

    class Hung(AlfWorld):
        async def reset(self, prompt, seed):
            turn = await super().reset(prompt, seed)
            pids.append(self.game.pid)
            os.kill(pids[0], signal.SIGSTOP)
            return turn

    async def hung():
        async with Hung.open(whole.environment) as make:
            environment = make()
            await play(
                Reservation.outside_ledger(problems[0], "entry-1"), environment, Script(environment, chat), chat, whole
            )

    with pytest.raises(EpisodeFailed, match=r"step took over environment.step_timeout_s = 0.5"):
        asyncio.run(hung())
    wait_for(lambda: not alive(pids[0]))


def test_a_game_that_is_none_is_said_with_its_path(tmp_path, problems):
    (tmp_path / "game.tw-pddl").write_text("{}")
    with pytest.raises(GameLost, match=r"game.tw-pddl: KeyError: 'pddl_domain'"):
        played(({"game": str(tmp_path / "game.tw-pddl")},))
    with pytest.raises(ValueError, match=r"expected a problem with a `game`, found id, question: set data.path to"):
        played(({"id": "1", "question": "2 + 2?"},))


def test_it_keeps_every_rule_of_an_environment(problems):
    assert_conforms("alfworld", problems, max_turns=12, episode_timeout_s=280)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[alfworld\]'"):
        played()


WORKER = """
import asyncio, os, signal, sys
from workers.environments.alfworld.games import Games

async def main():
    games = Games()
    game, _ = await games.begin(sys.argv[1], 1)
    print(games._server.pid, game.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_worker_that_is_killed_leaves_neither_server_nor_game_behind(problems):
    command = [sys.executable, "-c", WORKER, problems[0]["game"]]
    dead = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=250)
    pids = dead.stdout.split()
    assert dead.returncode == -signal.SIGKILL and len(pids) == 2
    wait_for(lambda: not any(map(alive, pids)), seconds=120)
