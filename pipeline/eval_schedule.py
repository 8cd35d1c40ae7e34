"""When a version is evaluated, and how long the engines wait for it.

    every engine serves v ─▶ due(v)? ─▶ request ─▶ held: engines stay at v ─▶ done, failed or too late ─▶ evals.jsonl

Due: the first version ever, the first one served at or after each multiple of eval.every, and the last one of the run.
All of it is read from Redis, so that a coordinator that was started again, or a second one, goes on with the same.
"""

import logging
import time
from pathlib import Path

from redis import Redis

from pipeline import evals, jsonl, keys

log = logging.getLogger(__name__)


class EvalSchedule:
    """Of one run; timeout_s counts from the request; a worker without its lease of lease_s is gone."""

    def __init__(self, client: Redis, run: str, every: int, last_version: int, timeout_s: float, lease_s: float):
        self._client, self._run, self._every, self._last_version = client, run, every, last_version
        self._timeout_s, self._lease_s = timeout_s, lease_s
        self._archived: set[int] = set()  # versions whose end is in the file, or in the log

    def held(self) -> int | None:
        """The version that engines must go on serving, because it is being evaluated."""
        evaluation = self._newest()
        if evaluation is None or evaluation.over:
            return None
        version, worker = evaluation.version, evaluation.worker
        age_s = time.time() - evaluation.requested_ms / 1000
        if age_s > self._timeout_s:
            who = f"{worker} took" if worker else "no worker took it up for"
            error = f"{who} longer than eval.timeout_s = {self._timeout_s:g}"
            evals.fail(self._client, self._run, version, worker, error)
        elif worker and self._is_gone(evaluation):
            ids = {"version": version, "worker": worker}
            log.warning("the worker is gone; version %d is evaluated by another one", version, extra=ids)
            evals.give_back(self._client, self._run, version, worker)
        return version

    def served(self, version: int) -> bool:
        """Every engine serves `version` now: ask for its evaluation if one is due. True if it must be held."""
        newest = self._newest()
        if newest is not None and (version <= newest.version or not self._due(version, newest.version)):
            return False
        log.info("version %d is to be evaluated", version, extra={"version": version})
        evals.request(self._client, self._run, version)
        return True

    def archive(self, path: Path) -> None:
        """Append to the JSONL file what is done and not in it yet."""
        over = [e for e in evals.read_all(self._client, self._run) if e.over and e.version not in self._archived]
        if not over:
            return
        with jsonl.appending(path) as file:  # of two coordinators only one writes a line
            known = {line["version"] for line in jsonl.read(path)}
            for evaluation in over:
                if evaluation.state == "failed":
                    ids = {"version": evaluation.version, "worker": evaluation.worker}
                    log.warning("the evaluation of version %d failed: %s", ids["version"], evaluation.error, extra=ids)
                elif evaluation.version not in known:
                    file.write(jsonl.as_line(evals.as_line(evaluation)))
        self._archived |= {evaluation.version for evaluation in over}

    def _due(self, version: int, previous: int) -> bool:
        return version >= self._last_version or version // self._every > previous // self._every

    def _is_gone(self, evaluation: evals.Evaluation) -> bool:
        # a worker that has just come up has no lease before its first renewal
        if time.time() - evaluation.claimed_ms / 1000 < self._lease_s:
            return False
        return self._client.zscore(keys.workers(self._run), evaluation.worker) is None

    def _newest(self) -> evals.Evaluation | None:
        found = self._client.zrange(keys.evaluations(self._run), -1, -1)
        return evals.read(self._client, self._run, int(found[0])) if found else None
