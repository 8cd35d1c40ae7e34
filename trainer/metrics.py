"""The trainer as metrics: the newest line of metrics.jsonl, what the lines of this process add up to, where its time
goes. Rank 0 alone serves them.

    headrace_reward 0.71                                   GAUGES, of the newest update; what its line lacks is absent
    headrace_publication_bytes 988097824                   and of the newest publication
    headrace_trained_tokens_total 81920                    COUNTERS, since this process has started
    headrace_trainer_seconds_total{doing="ready"} 12.5     grows also while nothing gets done
"""

import time
from collections.abc import Iterator

from pipeline.config import Trainer
from pipeline.metrics import Family, by, counter, gauge
from trainer.record import WAITS, Record

# key of a line -> name, what it is, how many base units one is
GAUGES = {
    "reward": ("headrace_reward", "Mean reward of the newest update's trajectories", 1),
    "success": ("headrace_success_ratio", "Mean outcome of the newest update's trajectories", 1),
    "loss": ("headrace_loss", "Loss", 1),
    "grad_norm": ("headrace_gradient_norm", "Norm of the gradient before it is clipped", 1),
    "lr": ("headrace_learning_rate", "Learning rate", 1),
    "entropy": ("headrace_entropy_nats", "Entropy of the policy, a token", 1),
    "kl": ("headrace_reference_kl_nats", "KL(policy ‖ reference), a token", 1),
    "ppo_kl": ("headrace_ppo_kl_nats", "How far the policy has moved within the update, a token", 1),
    "mismatch_kl": ("headrace_mismatch_kl_nats", "KL(engine ‖ trainer), a token", 1),
    "mismatch_max": ("headrace_mismatch_max_nats", "Largest difference of engine and trainer about one token", 1),
    "ess": ("headrace_effective_sample_size_ratio", "Effective sample size of the importance weights", 1),
    "clip_fraction": ("headrace_clipped_tokens_ratio", "Tokens whose policy ratio was clipped", 1),
    "tis_truncated": ("headrace_truncated_weights_ratio", "Tokens whose importance weight was capped", 1),
    "brier": ("headrace_value_brier_score", "Mean squared error of the prompts' values", 1),
    "mean_length": ("headrace_trajectory_length_tokens", "Mean length of a trajectory", 1),
    "turns": ("headrace_trajectory_turns", "Mean number of turns of a trajectory", 1),
    "seconds": ("headrace_update_period_seconds", "From the update before to the newest one", 1),
    "step_seconds": ("headrace_update_seconds", "How long the newest update took, without any waiting", 1),
    "mfu": ("headrace_model_flops_utilization_ratio", "Model FLOPs, as a share of the device's peak", 1),
    "peak_memory_gib": ("headrace_trainer_peak_memory_bytes", "Most memory that any rank has had at once", 1 << 30),
    "publish_seconds": ("headrace_publication_seconds", "How long the newest publication took", 1),
    "publish_bytes": ("headrace_publication_bytes", "How much the newest publication wrote", 1),
}
# key of a line -> name, what it is
COUNTERS = {
    "tokens": ("headrace_trained_tokens_total", "Tokens of the trajectories that were trained on"),
    "action_tokens": ("headrace_trained_action_tokens_total", "Tokens in the loss"),
    "trajectories": ("headrace_trained_trajectories_total", "Trajectories that were trained on"),
    "checkpoint_seconds": ("headrace_checkpoint_seconds_total", "For checkpoints, beside the updates"),
    "flops": ("headrace_trained_flops_total", "Floating-point operations of the updates, as counted for mfu"),
    "skipped": ("headrace_skipped_steps_total", "Optimizer steps left out, because a gradient was not finite"),
}


class TrainerMetrics:
    """Read from a thread of the server's, while the trainer goes on."""

    def __init__(self, record: Record, settings: Trainer):
        self._record, self._settings = record, settings
        self._seconds = dict.fromkeys(("update", *WAITS), 0.0)

    def families(self) -> Iterator[Family]:
        record = self._record
        yield counter("headrace_updates_total", "Updates that this process has made", record.totals["updates"])
        for key, (name, help) in COUNTERS.items():
            yield counter(name, help, record.totals[key])
        help = "Where the trainer's time went: updates, or why none was made"
        yield by("counter", "headrace_trainer_seconds_total", help, "doing", self._spent())
        alarm = self._settings.mismatch_alarm
        yield gauge("headrace_mismatch_alarm_nats", "trainer.mismatch_alarm", alarm)
        for key, (name, help, unit) in GAUGES.items():
            if (value := (record.publication | record.last).get(key)) is not None:
                yield gauge(name, help, value * unit)

    def _spent(self) -> dict[str, float]:
        record = self._record
        for doing, before in self._seconds.items():
            now = time.monotonic() - record.since if record.doing == doing else 0.0
            # a counter never falls, whenever the trainer is looked at
            self._seconds[doing] = max(before, record.seconds[doing] + record.spent[doing] + now)
        return self._seconds
