"""SPO's evidence, against one that is computed slowly: from the archived batches and the published weights."""

import numpy as np
import pytest
import redis
import torch
from transformers import AutoModelForCausalLM

from advantage.retention import retention
from pipeline import checkpoint_folder, events, keys, trajectory_file
from pipeline.config import Trainer as Settings
from pipeline.redis_server import RedisServer
from tests.trainer import gradients
from tests.trainer.forked import ended, started
from tests.trainer.ledger import Producer, make_run, trajectory
from tests.trainer.runs import Killed, comparable, give_up_on_redis, recorded, train, trainer_that_loses
from trainer import loop
from trainer.loop import Trainer
from trainer.ranks import joined
from trainer.receipts import Receipts, drifts

SETTINGS = {"evidence": "receipt", "archive": "true", "lr": "1e-4", "total_steps": 8, "max_staleness": 1}
PROMPTS = 16  # visited again within the eight batches


def batches(config):
    folder = config.folder / "trained"
    return [trajectory_file.read(folder / f"{version}.bin") for version in range(config.run.total_steps)]


def action_logprobs(folder, t):
    """[L] float64 nats, one trajectory alone."""
    model = AutoModelForCausalLM.from_pretrained(folder).double()
    tokens = torch.from_numpy(t.tokens.astype(np.int64))
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=tokens[None]).logits[0], -1)
    return np.array([float(logprobs[i - 1, tokens[i]]) for i in range(1, len(tokens)) if t.loss_mask[i]])


def slow_evidence(config):
    """alpha, beta of each prompt (arXiv 2509.13232, 3.1), and the retention of each visit but first ones."""
    weights = {int(path.name.partition("-")[0]): path for path in (config.folder / "weights").iterdir()}
    evidence, last, retentions = {}, {}, []
    for version, batch in enumerate(batches(config)):
        for t in batch:
            rho = 0.96
            if (before := last.get(t.prompt_id)) is not None:
                moved = action_logprobs(weights[version + 1], before) - action_logprobs(weights[version], before)
                rho = min(0.96, max(0.875, 2 ** -(np.abs(moved).mean() / 0.06)))
                retentions.append(rho)
            alpha, beta = evidence.get(t.prompt_id, (4.0, 4.0))
            evidence[t.prompt_id] = rho * alpha + t.outcome, rho * beta + 1 - t.outcome
            last[t.prompt_id] = t
    return evidence, retentions


def holds(config, client):
    """The ledger's evidence is the paper's, each update is in it once, and the metrics tell of it."""
    expected, retentions = slow_evidence(config)
    for prompt, (alpha, beta) in expected.items():
        found = client.hmget(keys.prompt(config.run.name, prompt), "alpha", "beta")
        assert list(map(float, found)) == pytest.approx([alpha, beta], rel=1e-4), prompt
    assert sum(0.876 < rho < 0.959 for rho in retentions) >= 3, "this is about retentions between the bounds"
    visits = sum(map(len, batches(config)))
    lines = recorded(config)
    assert sum(line["retention"] for line in lines) * config.buffers.batch_size == pytest.approx(
        sum(retentions) + 0.96 * (visits - len(retentions)), rel=1e-4
    )
    assert lines[0]["drift"] == 0 < max(line["drift"] for line in lines)
    found = events.wait(client, config.run.name, "0", 0)
    assert [int(event.fields["version"]) for event in found if event.kind == "credited"] == list(range(8))


def test_evidence_follows_the_policy_as_in_the_paper(client, run, tmp_path):
    config = make_run(tmp_path, run, **SETTINGS)
    with Producer(client, config, prompts=PROMPTS):
        train(config, client)
    holds(config, client)


def test_two_ranks_give_the_same_evidence(client, redis_url, run, tmp_path):
    config = make_run(tmp_path, run, **SETTINGS, ranks=2)
    with Producer(client, config, prompts=PROMPTS), started(config, redis_url) as processes:
        assert [code for _, code in ended(processes)] == [0, 0]
    holds(config, client)


class KilledBeforeTheCredit(Trainer):
    """Update 3 is done and recorded, checkpoint 2 is the newest."""

    def _credit(self):
        if self.version == 4:
            raise Killed
        super()._credit()


class KilledBeforePublication(Trainer):
    """Update 3 is credited; its policy is not out."""

    def _publish(self, last=False):
        if self.version == 4:
            raise Killed
        super()._publish(last)


class KilledWhileItWaits(Trainer):
    """Update 4 is credited and out, checkpoint 4 is the newest."""

    def _next_batch(self):
        if self.version == 5:
            raise Killed
        return super()._next_batch()


@pytest.mark.parametrize("kind", [KilledBeforeTheCredit, KilledBeforePublication, KilledWhileItWaits])
def test_a_killed_trainer_measures_the_same_again_and_credits_it_once(client, run, tmp_path, kind):
    config = make_run(tmp_path, run, **SETTINGS)
    with Producer(client, config, prompts=PROMPTS):
        with pytest.raises(Killed):
            train(config, client, kind=kind)
        before = comparable(recorded(config))
        archived = {path.name: path.read_bytes() for path in (config.folder / "trained").iterdir()}
        train(config, client)
    assert comparable(recorded(config))[: len(before)] == before
    assert {name: (config.folder / "trained" / name).read_bytes() for name in archived} == archived
    holds(config, client)


def test_a_ledger_that_lost_credits_gets_them_again(client, run, tmp_path):
    config = make_run(tmp_path, run, **SETTINGS)
    with Producer(client, config, prompts=PROMPTS) as producer:
        kind = trainer_that_loses(producer, since=3, at=5)
        train(config, client, kind=kind)
    assert kind.lost == [5]
    holds(config, client)


def test_a_credit_that_redis_did_not_take_is_in_the_checkpoint(run, tmp_path):
    class Stops(Trainer):
        def _credit(self):
            if self.version == 4:
                server.stop()
            super()._credit()

    server = RedisServer.start(tmp_path / "redis")
    config = make_run(tmp_path, run, **SETTINGS)
    with redis.Redis.from_url(server.url, retry=None) as client, Producer(client, config, prompts=PROMPTS):
        give_up_on_redis(config, client, Stops, loop)
        assert checkpoint_folder.newest(config.folder / "checkpoints").name == "4"
        server = RedisServer.start(server.folder)
        train(config, client)
        holds(config, client)
    server.stop()


def test_a_prompt_that_comes_twice_in_a_batch_is_visited_twice(tiny_model):
    with joined(Settings()) as ranks:
        updater = gradients.make_updater(ranks, gradients.settings(tiny_model, budget=400))
        batch = [trajectory(seed, prompt_id=prompt) for seed, prompt in enumerate(["a", "b", "a"])]
        receipts = Receipts(updater)
        old = updater.logprobs(batch[:1])
        metrics = receipts.update(updater.prepare(batch), 0)
        moved = drifts(old, updater.logprobs(batch[:1]))
    assert receipts.of(0) == [
        ("a", 0.96, batch[0].outcome),
        ("b", 0.96, batch[1].outcome),
        ("a", retention(moved[0]), batch[2].outcome),
    ]
    assert metrics["drift"] == moved[0] > 0
    assert [t.entry for t in receipts.previous] == ["e2", "e1"]


def test_drift_is_the_mean_distance_of_the_log_probs_and_nothing_where_there_are_none():
    before = [np.float32([-1, -2, -3]), np.float32([])]
    after = [np.float32([-1.5, -2, -2.75]), np.float32([])]
    assert drifts(before, after).tolist() == [0.25, 0.0]
