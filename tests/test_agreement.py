"""Engine and trainer compute the same numbers. Nothing is replaced: worker, ledger, sandbox, SGLang, packing, FSDP2.

play under version 0 ─▶ trajectories ─▶ the trainer's packed forward on weights/0           |Δ log p| ≤ 1e-4 nats
      update, publish, load
play under version 1 ─▶ trajectories ─▶ … on weights/1  ≤ 1e-4, on weights/0  far from it
      interrupted twice ─▶ one trajectory of versions 0, 1 and 2 ─▶ each segment on its own weights  ≤ 1e-4
"""

import asyncio
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import redis
import torch

from pipeline.config import Config
from pipeline.coordinator import Coordinator
from pipeline.data import training_problems
from pipeline.engines import Engine
from pipeline.ledger_types import Reservation
from pipeline.weights import Label
from tests.fixtures_sglang import abort_all, running, slow_down
from trainer import model as policy
from trainer.packing import pack
from trainer.publish import probe_tokens, write_weights
from trainer.ranks import joined
from trainer.sharding import shard
from trainer.step import make_optimizer
from trainer.update import Updater
from workers import engine as engines
from workers.chat import Chat
from workers.continuation import Continuation
from workers.environments import open_environment
from workers.episode import Episode, play
from workers.ledger import Ledger
from workers.routing import Routes
from workers.time_limit import TimeLimit
from workers.worker import Worker

pytestmark = pytest.mark.sglang
TOLERANCE = 1e-4  # nats, in float32
BATCH = 12


def settings(folder: Path, model: Path) -> Config:
    return Config.model_validate(
        {
            "run": {"name": "agreement", "folder": folder},
            "model": {"path": model},
            "data": {"size": 32, "tasks": {"chain_sum": {"min_terms": 2, "max_terms": 4, "max_digits": 3}}},
            "environment": {"name": f"{Path(__file__).parent}/insistent_tool.py:InsistentTool", "max_turns": 3},
            "rollout": {"concurrency": 6, "max_tokens": 24, "context_length": 512},
            "buffers": {"max_staleness": 0, "batch_size": BATCH, "max_trajectory_bytes": 65536},
            "optimizer": {"lr": 1e-2},  # of one step: version 1 has to be visibly another policy
            "trainer": {"token_budget": 512},
        }
    )


@pytest.fixture(scope="module")
def admin(sglang):
    admin = Engine(sglang.url)
    yield admin
    admin.load(sglang.model_path, "base", timeout_s=60)  # for the tests of other files


@pytest.fixture(scope="module")
def journey(sglang, admin, redis_url, tmp_path_factory):
    """Two batches of a run, `played[v]` under version v, and the weights of versions 0, 1 and 2."""
    config = settings(tmp_path_factory.mktemp("agreement"), sglang.model_path)
    run, problems = config.run.name, training_problems(config)
    folders = [config.folder / "weights" / str(version) for version in (0, 1, 2)]
    probe = probe_tokens(sglang.model_path, problems[0]["question"])
    played = []
    with redis.Redis.from_url(redis_url) as client, joined(config.trainer) as ranks:
        c = Coordinator.create(client, run, config.ledger_settings)
        c.add_prompts([{"id": p["id"], "payload": json.dumps(p).encode()} for p in problems])
        c.join("trainer", 0)
        model = shard(policy.load(sglang.model_path), ranks, "float32")
        updater = Updater(model, make_optimizer(model, config), config, ranks, layout="rows")
        for version, folder in enumerate(folders):
            manifest = write_weights(model, folder, version, sglang.model_path, "float32", probe).manifest
            c.publish("trainer", version, str(folder), manifest.digest)
            if version == 2:
                break
            admin.bring(folder, run, timeout_s=60, tolerance=TOLERANCE)
            c.register_engine("e0", version, sglang.url)
            asyncio.run(work(config, Coordinator(client, run)))
            played.append(c.fetch(c.consume("trainer", version).refs))
            updater.update(updater.prepare(played[version]), version)
    return SimpleNamespace(config=config, folders=folders, played=played)


async def work(config: Config, coordinator: Coordinator) -> None:
    """One worker, until the only open buffer is full."""
    async with open_environment(config.environment) as make, engines.connections() as http:
        worker = Worker(config, coordinator, "w0", Chat(config.model_path), make, http)
        task = asyncio.create_task(worker.run())
        async with asyncio.timeout(60):
            while worker.counts["episodes"] < BATCH:
                await asyncio.sleep(0.05)
        worker.drain()
        await task


def trainer_logprobs(folder: Path, trajectories) -> list[np.ndarray]:
    """[T] float64 each: the trainer's log-probs at the action tokens, packed into two rows; nan elsewhere."""
    found = [np.full(len(t.tokens), np.nan) for t in trajectories]
    indices = list(range(len(trajectories)))
    micro = pack([indices[0::2], indices[1::2]], trajectories)
    with torch.no_grad():
        logprobs, _ = policy.action_logprobs(policy.load(folder), micro)
    for i, part in zip(micro.members, logprobs.split(micro.counts), strict=True):
        found[i][trajectories[i].loss_mask == 1] = part.numpy()
    return found


def differences(folder: Path, trajectories) -> np.ndarray:
    """[n] nats, at all action tokens: |engine - trainer|."""
    trainers = trainer_logprobs(folder, trajectories)
    assert all((np.isfinite(own) == (t.loss_mask == 1)).all() for own, t in zip(trainers, trajectories, strict=True))
    parts = [np.abs(own - t.rollout_logprobs) for own, t in zip(trainers, trajectories, strict=True)]
    return np.concatenate([part[np.isfinite(part)] for part in parts])


@pytest.mark.parametrize("version", [0, 1])
def test_the_log_probs_of_a_batch_are_those_of_the_trainer_on_the_same_weights(journey, version):
    trajectories = journey.played[version]
    assert len(trajectories) == BATCH
    assert {s.version for t in trajectories for s in t.segments} == {version}
    assert differences(journey.folders[version], trajectories).max() <= TOLERANCE


def test_after_a_publication_engine_and_trainer_have_both_left_the_old_weights(journey):
    old, new, _ = journey.folders
    assert np.median(differences(old, journey.played[1])) > 100 * TOLERANCE
    assert np.median(differences(new, journey.played[0])) > 100 * TOLERANCE


def test_what_is_trained_on_is_exactly_what_the_engine_sampled(journey):
    chat = Chat(journey.config.model_path)
    problems = {problem["id"]: problem for problem in training_problems(journey.config)}
    everything = [t for played in journey.played for t in played]
    # A model that has learned nothing begins one reply in a few hundred with its end token: such an episode is over.
    assert sum(t.finish_reason == "turns" for t in everything) >= len(everything) // 2
    for t in everything:
        actions = np.zeros(len(t.tokens), bool)
        for start, length, _, _ in t.segments:
            actions[start : start + length] = True
        assert (actions == (t.loss_mask == 1)).all()
        assert (t.rollout_logprobs[~actions] == 0).all() and (t.rollout_logprobs[actions] < 0).all()
        if t.finish_reason != "empty":
            assert t.metrics["turns"] == 3 and t.metrics["tool_calls"] == 3
        # What the mask leaves out is the question, and after each reply but the last what the tool printed.
        ends = [start + length for start, length, _, _ in t.segments]
        starts = [start for start, *_ in t.segments]
        problem = problems[t.prompt_id]
        question = chat.prompt([{"role": "user", "content": f"{problem['metadata']['expression']} = ?"}])
        observation = chat.extend([{"role": "tool", "content": problem["answer"]}])
        assert t.tokens[: starts[0]].tolist() == question
        for end, start in zip(ends, starts[1:], strict=False):
            assert t.tokens[end:start].tolist()[-len(observation) :] == observation
            assert t.tokens[end:start].tolist()[: -len(observation)] in ([], [chat.end_token])
        assert ends[-1] == len(t.tokens)


def test_each_segment_of_a_trajectory_across_a_publication_is_that_of_its_own_weights(journey, admin):
    config, (old, new, _) = journey.config, journey.folders
    chat, run = Chat(config.model_path), config.run.name
    problem = training_problems(config)[0]

    async def main():
        async with open_environment(config.environment) as make, engines.connections() as http:
            environment, sampling = make(), engines.sampling(config.rollout, chat.end_token)
            step = environment.step

            async def publication(reply):
                await asyncio.to_thread(admin.bring, new, run, 60)
                return await step(reply)

            async def published(label: Label) -> bool:
                return label.run == run

            environment.step = publication
            engine = engines.Engine("e0", admin.url, http, sampling, published, 60)
            await asyncio.to_thread(admin.bring, old, run, 60)
            payload = json.dumps(problem).encode()
            return await play(
                Reservation("e", problem["id"], payload, 0, 1, 0, 0.5, 1), environment, engine, chat, config
            )

    t = asyncio.run(main())
    assert [s.version for s in t.segments] == [0, 1, 1]
    by_version = [trainer_logprobs(folder, [t, t, t])[2] for folder in (old, new)]
    for start, length, _, version in t.segments:
        own, other = (
            np.abs(by_version[v] - t.rollout_logprobs)[start : start + length] for v in (version, 1 - version)
        )
        assert own.max() <= TOLERANCE < other.max()


def test_an_episode_that_is_interrupted_twice_has_segments_of_three_versions_each_of_its_own_weights(
    journey, admin, redis_url
):
    config, run, chat = journey.config, journey.config.run.name, Chat(journey.config.model_path)
    problem = training_problems(config)[0]
    reservation = Reservation("e", problem["id"], json.dumps(problem).encode(), 0, 1, 0, 0.5, 1)
    endless = {"stop_token_ids": [], "ignore_eos": True}  # every reply has max_tokens
    counts = Counter()

    def bring(c: Coordinator, version: int) -> None:
        c.mark_engine("e0", "loading", "", admin.url)
        abort_all(admin.url)
        admin.bring(journey.folders[version], run, 60)
        c.register_engine("e0", version, admin.url)

    async def main(c: Coordinator):
        async with open_environment(config.environment) as make, engines.connections() as http:
            routes = Routes(config, Ledger(c), http, engines.sampling(config.rollout, chat.end_token) | endless)
            await asyncio.to_thread(bring, c, 0)
            await routes.refresh()
            slow_down(admin.url, 0.2)
            time_limit = TimeLimit(60)
            with Continuation("e", "e0", routes, chat, [], time_limit, counts) as generator:
                episode = Episode(reservation, make(), generator, chat, config, time_limit, seed=0)
                playing = asyncio.create_task(episode.play())
                for version in (1, 2):
                    while not await asyncio.to_thread(running, admin.url):
                        await asyncio.sleep(0.02)
                    await asyncio.sleep(0.5)  # a few of 24 tokens
                    await asyncio.to_thread(bring, c, version)
                    await routes.refresh()
                slow_down(admin.url, None)
                return await playing

    try:
        with redis.Redis.from_url(redis_url) as client:
            t = asyncio.run(main(Coordinator(client, run)))
    finally:
        slow_down(admin.url, None)
    assert counts["continued"] == 2 and counts["migrated"] == 0
    versions = [s.version for s in t.segments]
    assert versions == sorted(versions) and set(versions) == {0, 1, 2} and len(versions) > 3
    assert (t.version, t.metrics["turns"], t.action_tokens) == (0, 3, 3 * 24)
    by_version = [trainer_logprobs(folder, [t, t, t])[2] for folder in journey.folders]
    for start, length, _, version in t.segments:
        off = [np.abs(own - t.rollout_logprobs)[start : start + length].max() for own in by_version]
        assert off[version] <= TOLERANCE < min(off[:version] + off[version + 1 :])
