"""A small run in this process with its three endpoints: a real ledger, a trainer that made three updates, and a worker
that played against a scripted engine. What an update and an episode were like is no matter; that all is told is."""

import asyncio
import contextlib
import json

from pipeline import evals
from pipeline.config_file import load
from pipeline.coordinator import Coordinator
from pipeline.data import training_problems
from pipeline.ledger_metrics import LedgerMetrics
from pipeline.metrics import serving
from pipeline.redis_client import connect
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import train
from tests.workers.conftest import until, working
from tests.workers.fake_sglang import FakeSGLang, answer
from trainer.metrics import TrainerMetrics
from workers.chat import Chat
from workers.metrics import WorkerMetrics

SETTINGS = ["metrics.port=0", "environment.name=single_turn", "rollout.concurrency=4", "rollout.grace_s=1"]


class OfProblems(Producer):
    """Its prompts can be played; those of the last version it leaves to the worker."""

    def create(self):
        self.ledger = Coordinator.create(self.client, self.config.run.name, self.config.ledger_settings, seed=1)
        self.ledger.add_prompts({"id": p["id"], "payload": json.dumps(p)} for p in training_problems(self.config))

    def _work(self, version):
        if version < self.config.run.total_steps:
            super()._work(version)


@contextlib.contextmanager
def looked_at(folder, redis_url):
    """The config, whose folder of runs is `folder`, and {process: address of its endpoint}."""
    with connect(redis_url) as client:
        made = make_run(folder, "looked-at", total_steps=3, max_staleness=1)
        config = load(made.folder / "run.toml", SETTINGS)
        with OfProblems(client, config) as producer:
            trainer = train(config, client)
        worker = asyncio.run(_played(config, producer.ledger))
        evals.request(client, config.run.name, 3)
        evals.claim(client, config.run.name, "worker-0-x")
        result = {"success": 0.5, "stderr": 0.1, "trajectories": 8, "seconds": 3.0}
        evals.finish(client, config.run.name, 3, "worker-0-x", **result)
        told = {
            "coordinator": LedgerMetrics(client, config),
            "trainer": TrainerMetrics(trainer.record, config.trainer),
            "worker-0": WorkerMetrics(worker, "worker-0"),
        }
        with contextlib.ExitStack() as stack:
            served = {p: stack.enter_context(serving(config, p, metrics.families)) for p, metrics in told.items()}
            yield config, served


async def _played(config, ledger):
    """A worker whose first request was refused by the engine, and that then filled what there was to fill."""
    label = str((await asyncio.to_thread(ledger.weights, 3)).label(config.run.name))
    refused = []
    async with FakeSGLang(
        lambda request: answer(label) if refused else refused.append(1) or (400, "no")
    ).serving() as e:
        await asyncio.to_thread(ledger.register_engine, "engine-0", 3, e.url)
        async with working(config, ledger, Chat(config.model_path)) as worker:
            await until(lambda: worker.counts["placed"] and worker.admission.seconds["FULL"])
    return worker
