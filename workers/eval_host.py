"""Held-out evaluations inside a worker: claimed from the ledger's list, played on the same engines, written back.

coordinator: request(v), engines stay at v ──▶ claim ──▶ Scorer.score(problems, n) ──▶ finish | fail
                                                 └── drained meanwhile ──▶ give_back: another worker's
"""

import asyncio
import logging
import time
from collections.abc import Callable

from pipeline import config, evals
from pipeline.data import evaluation_problems
from workers.chat import Chat
from workers.engine import Engine, EngineGone
from workers.environments import Environment
from workers.evaluate import EvaluationFailed, Scorer, summarize
from workers.ledger import Ledger
from workers.routing import Routes

log = logging.getLogger(__name__)

LOOK_S = 0.5


class EvalHost:
    """One evaluation at a time, beside the worker's own episodes."""

    def __init__(
        self,
        settings: config.Config,
        ledger: Ledger,
        incarnation: str,
        chat: Chat,
        make_environment: Callable[[], Environment],
        routes: Routes,
    ):
        self.settings, self.ledger, self.incarnation = settings, ledger, incarnation
        self.chat, self.make_environment, self.routes = chat, make_environment, routes
        self.version: int | None = None  # being evaluated
        self._task: asyncio.Task | None = None

    async def host(self) -> None:
        """Claim and evaluate, until cancelled; nothing to do in a run without [eval.data]."""
        if self.settings.eval.data is None:
            return
        self._task = asyncio.current_task()
        while True:
            self.version = await self._call(evals.claim, self.incarnation)
            if self.version is None:
                await asyncio.sleep(LOOK_S)
            else:
                await self._evaluate(self.version)

    async def give_back(self) -> None:
        """Stop, and leave an unfinished evaluation to another worker."""
        if self._task:
            self._task.cancel()
        if self.version is not None:
            await self._call(evals.give_back, self.version, self.incarnation)
            self.version = None

    async def _evaluate(self, version: int) -> None:
        ids = {"version": version, "worker": self.incarnation}
        log.info("evaluating version %d", version, extra=ids)
        begun = time.monotonic()
        scorer = Scorer(self.settings, self.chat, self.make_environment, self._engine, version)
        try:
            problems = await asyncio.to_thread(evaluation_problems, self.settings)
            outcomes = await scorer.score(problems, self.settings.eval.n)
        except EvaluationFailed as error:
            log.warning("the evaluation of version %d failed: %s", version, error, extra=ids)
            await self._call(evals.fail, version, self.incarnation, str(error))
            return
        success, stderr = summarize(outcomes)
        seconds, count = time.monotonic() - begun, sum(map(len, outcomes))
        log.info("version %d: success %.3f ± %.3f in %.1f s", version, success, stderr, seconds, extra=ids)
        result = {"success": success, "stderr": stderr, "trajectories": count, "seconds": seconds}
        await self._call(evals.finish, version, self.incarnation, **result)

    def _engine(self) -> Engine:
        ready = self.routes.ready
        names = [name for name in self.routes.order("") if ready[name].version == self.version]
        if not names:
            raise EngineGone(f"no engine serves version {self.version} ({self.routes.waiting()})")
        return self.routes.engine(names[0], temperature=self.settings.eval.temperature)

    async def _call(self, call: Callable, *arguments, **named):
        coordinator = self.ledger.coordinator
        return await self.ledger(call, coordinator.client, coordinator.run, *arguments, **named)
