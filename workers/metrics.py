"""One worker as metrics: what it plays, what became of it, what it was refused, where its episodes' time went."""

from collections.abc import Iterator, Mapping

from pipeline.metrics import Family
from workers.admission import OF_ONE_ENGINE, WAITS
from workers.engine import EngineError
from workers.worker import Worker

OUTCOMES = ("placed", "surplus", "filtered", "refused")
REFUSALS = sorted(OF_ONE_ENGINE | WAITS.keys() | {"PAUSED"})
FAILED = "failed_"  # counts of failures by code
# told before they happen, so that the first one is an increase; those of an environment's own come when they do
CODES = (
    *("setup_timeout", "step_timeout", "episode_timeout", "environment", "prompt_too_long", "truncated"),
    *(kind.code.lower() for kind in (EngineError, *EngineError.__subclasses__())),
)


class WorkerMetrics:
    """name: the process's, whatever its incarnation. Read from a thread of the server's."""

    def __init__(self, worker: Worker, name: str):
        self._worker, self._name = worker, name

    def families(self) -> Iterator[Family]:
        worker, counts, admission = self._worker, self._worker.counts, self._worker.admission
        yield self._one("gauge", "in_flight_episodes", "Episodes that are played now", worker.in_flight)
        at_once = worker.settings.rollout.concurrency
        yield self._one("gauge", "concurrency_episodes", "rollout.concurrency", at_once)
        waiters = worker.routes.waiters
        yield self._one("gauge", "without_engine_episodes", "Episodes that no engine can go on with", waiters)
        evaluating = float(worker.evaluations.version is not None)
        yield self._one("gauge", "evaluating", "Whether it plays held-out problems", evaluating)
        yield self._one("counter", "episodes_total", "Episodes whose entry was placed", counts["episodes"])
        generated = counts["action_tokens"]
        yield self._one("counter", "generated_tokens_total", "Tokens of finished trajectories' replies", generated)
        yield self._one("counter", "tool_calls_total", "Tool calls of finished trajectories", counts["tool_calls"])
        entries = {outcome: counts[outcome] for outcome in OUTCOMES}
        yield self._by("entries_total", "Entries handed in", "outcome", entries)
        failures = dict.fromkeys(CODES, 0) | {
            name.removeprefix(FAILED): n for name, n in counts.copy().items() if name.startswith(FAILED)
        }
        yield self._by("failures_total", "Episodes that gave no trajectory", "code", failures)
        moved = {how: counts[how] for how in ("continued", "migrated")}
        help = "Replies that went on under other weights, or at another engine"
        yield self._by("resumed_replies_total", help, "how", moved)
        refusals = {reason: admission.refusals[reason] for reason in REFUSALS}
        yield self._by("refusals_total", "Reserves that were refused", "reason", refusals)
        seconds = {reason: admission.seconds[reason] for reason in REFUSALS}
        help = "With room for another entry, while Reserve refuses one"
        yield self._by("refused_seconds_total", help, "reason", seconds)
        spent = {doing: worker.shared.seconds[doing] for doing in ("generate", "environment")}
        help = "Of the episodes that have ended: their replies, and their environment with its tools"
        yield self._by("episode_seconds_total", help, "doing", spent)

    def _one(self, kind: str, name: str, help: str, value: float) -> Family:
        return Family(kind, f"headrace_worker_{name}", help, [({"worker": self._name}, value)])

    def _by(self, name: str, help: str, label: str, values: Mapping[str, float]) -> Family:
        samples = [({"worker": self._name, label: each}, value) for each, value in values.items()]
        return Family("counter", f"headrace_worker_{name}", help, samples)
