"""Mistakes that would be easy to make, each as one textual change, and the test that must not let it pass."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutation(NamedTuple):
    """In the file `path`, `old` (which it has once) becomes `new`; `test`: what pytest is given."""

    title: str
    path: str
    old: str
    new: str
    test: str


def patched(mutation: Mutation, root: Path) -> str:
    """The text of its file in the tree `root`, mutated. Raises SystemExit if the mutation no longer applies."""
    text = (root / mutation.path).read_text()
    if (found := text.count(mutation.old)) != 1:
        raise SystemExit(
            f"mutation {mutation.title!r} no longer applies: expected once in {mutation.path}, found {found} times:\n"
            f"    {mutation.old}\nwrite it anew in tests/mutations/patches.py"
        )
    return text.replace(mutation.old, mutation.new)


ADVANTAGE, TRAINER, PIPELINE = "tests/advantage/test_", "tests/trainer/test_", "tests/pipeline/test_"
SANDBOX = "tests/workers/sandbox/test_"

MUTATIONS = [
    Mutation(
        "spo++ is normalized by trajectory",
        "advantage/spo_plus_plus.py",
        'normalization or "token"',
        'normalization or "trajectory"',
        f"{ADVANTAGE}spo_plus_plus.py",
    ),
    Mutation(
        "spo is normalized by token",
        "advantage/spo.py",
        'normalization or "trajectory"',
        'normalization or "token"',
        f"{ADVANTAGE}spo.py",
    ),
    Mutation(
        "the two normalizations are swapped",
        "advantage/normalization.py",
        'if measure == "trajectory":',
        'if measure == "token":',
        f"{ADVANTAGE}normalization.py",
    ),
    Mutation(
        "σ is that of the population",
        "advantage/normalization.py",
        "/ (total - 1))",
        "/ total)",
        f"{ADVANTAGE}normalization.py",
    ),
    Mutation(
        "reinforce++ is normalized by trajectory",
        "advantage/reinforce_plus_plus.py",
        'normalization or "token"',
        'normalization or "trajectory"',
        f"{ADVANTAGE}reinforce_plus_plus.py",
    ),
    Mutation(
        "grpo does not divide by the group's spread",
        "advantage/grpo.py",
        "lambda group: standardize(group, np.ones_like(group), EPSILON)",
        "lambda group: group - group.mean()",
        f"{ADVANTAGE}by_group.py",
    ),
    Mutation(
        "grpo adds another constant to the group's spread",
        "advantage/grpo.py",
        "EPSILON = 1e-6",
        "EPSILON = 1e-4",
        f"{ADVANTAGE}public_code.py",
    ),
    Mutation(
        "dr_grpo divides by the group's spread",
        "advantage/__init__.py",
        '"dr_grpo": dr_grpo',
        '"dr_grpo": grpo',
        f"{ADVANTAGE}by_group.py",
    ),
    Mutation(
        "rloo's baseline contains the trajectory itself",
        "advantage/rloo.py",
        "len(rewards) / others * ",
        "",
        f"{ADVANTAGE}by_group.py",
    ),
    Mutation(
        "groups are compared with each other",
        "advantage/groups.py",
        "members.setdefault(group, [])",
        "members.setdefault(None, [])",
        f"{ADVANTAGE}by_group.py",
    ),
    Mutation(
        "equal rewards whose mean rounds have an advantage",
        "advantage/groups.py",
        " if np.ptp(rewards) else np.zeros_like(rewards)",
        "",
        f"{ADVANTAGE}by_group.py",
    ),
    Mutation(
        "the overlong penalty begins a buffer too late",
        "advantage/overlong.py",
        "(limit - buffer - lengths)",
        "(limit - lengths)",
        f"{ADVANTAGE}overlong.py",
    ),
    Mutation(
        "evidence is forgotten at another ρ",
        "advantage/evidence.py",
        "RHO = 0.875",
        "RHO = 0.9",
        f"{ADVANTAGE}evidence.py",
    ),
    Mutation(
        "evidence is weighed in receipt order",
        "advantage/evidence.py",
        "weight = self.rho ** (newest - event)",
        "weight = 1.0",
        f"{ADVANTAGE}evidence.py",
    ),
    Mutation(
        "the ledger weighs evidence in receipt order",
        "pipeline/lua/_evidence.lua",
        "local weight = run.rho ^ (newest - event)",
        "local weight = 1",
        f"{PIPELINE}occupy.py",
    ),
    Mutation(
        "the ledger forgets evidence at another ρ",
        "pipeline/lua/_evidence.lua",
        "local decay = run.rho ^ (event - newest)",
        "local decay = 0.9 ^ (event - newest)",
        f"{PIPELINE}occupy.py",
    ),
    Mutation(
        "retention halves at another drift",
        "advantage/retention.py",
        "HALF_LIFE = 0.06",
        "HALF_LIFE = 0.05",
        f"{ADVANTAGE}retention.py",
    ),
    Mutation(
        "a changed policy forgets everything",
        "advantage/retention.py",
        "LEAST, MOST = 0.875, 0.96",
        "LEAST, MOST = 0.0, 0.96",
        f"{ADVANTAGE}retention.py",
    ),
    Mutation(
        "a credit does not fade what was before",
        "pipeline/lua/credit.lua",
        "retention * p[1] + outcome",
        "p[1] + outcome",
        f"{PIPELINE}credit.py",
    ),
    Mutation(
        "the loss looks at tokens that the mask leaves out",
        "trainer/loss.py",
        "keep, width = mask.bool(), logprobs.shape[-1]",
        "keep, width = torch.ones_like(mask).bool(), logprobs.shape[-1]",
        f"{TRAINER}loss.py",
    ),
    Mutation(
        "tool tokens are trained on",
        "trainer/packing.py",
        "1 + np.flatnonzero(t.loss_mask[1:].view(bool))",
        "1 + np.flatnonzero(np.ones_like(t.loss_mask[1:]))",
        f"{TRAINER}packing.py",
    ),
    Mutation(
        "tool tokens are counted in L",
        "trainer/update.py",
        "np.count_nonzero(t.loss_mask[1:])",
        "len(t.loss_mask[1:])",
        f"{TRAINER}update.py::test_an_update_is_that_of_a_plain_loop_in_float64",
    ),
    Mutation(
        "a worker marks tool tokens as generated",
        "workers/transcript.py",
        "loss_mask[start : start + len(logprobs)] = 1",
        "loss_mask[start:] = 1",
        "tests/workers/test_episode.py::test_masks_segments_and_logprobs_cover_exactly_what_was_generated",
    ),
    Mutation(
        "each micro-batch divides by its own tokens",
        "trainer/update.py",
        "            measure.tokens,\n",
        "            None,\n",
        f"{TRAINER}update.py::test_packing_changes_nothing",
    ),
    Mutation(
        "each rank divides by its own tokens",
        "trainer/update.py",
        "measure = measure_of(counts, self.config)",
        "own = [i for part in minibatches for micro in part for i in micro.members]\n"
        "        measure = measure_of(np.where(np.isin(np.arange(len(counts)), own), counts, 0), self.config)",
        f"{TRAINER}update.py::test_two_ranks_equal_one_so_no_rank_divides_by_its_own_tokens",
    ),
    Mutation(
        "each step divides by the tokens of the whole update",
        "trainer/aggregation.py",
        "counts.sum() / steps",
        "counts.sum()",
        f"{TRAINER}update_variants.py::test_an_update_is_that_of_plain_loops_in_float64",
    ),
    Mutation(
        "advantages are centred in each micro-batch",
        "trainer/update.py",
        "np.repeat(advantages[micro.members], micro.counts)",
        "np.repeat(advantages[micro.members] - advantages[micro.members].mean(), micro.counts)",
        f"{TRAINER}update.py::test_packing_changes_nothing",
    ),
    Mutation(
        "Dual-Clip caps what the importance weight has multiplied",
        "trainer/loss.py",
        "losses = torch.where(capped, ceiling, pessimistic)",
        "losses = torch.where(capped, ceiling / exp(proximal - rollout), pessimistic)",
        f"{TRAINER}loss.py",
    ),
    Mutation(
        "the clips change places",
        "trainer/loss.py",
        "ratio.clamp(1 - config.clip_low, 1 + config.clip_high)",
        "ratio.clamp(1 - config.clip_high, 1 + config.clip_low)",
        f"{TRAINER}loss.py",
    ),
    Mutation(
        "a gradient flows through the proximal policy",
        "trainer/loss.py",
        "proximal[keep].detach(), rollout[keep].detach()",
        "proximal[keep], rollout[keep].detach()",
        f"{TRAINER}loss.py",
    ),
    Mutation(
        "every visit of a prompt is in one group",
        "trainer/batch.py",
        "groups=[t.entry for t in trajectories]",
        "groups=[t.prompt_id for t in trajectories]",
        f"{TRAINER}batch.py",
    ),
    Mutation(
        "the overlong penalty is a reward",
        "trainer/batch.py",
        "+ overlong_penalties(trajectories, config)",
        "- overlong_penalties(trajectories, config)",
        f"{TRAINER}update_variants.py::test_a_long_trajectory_is_worth_less_to_the_advantage_and_the_same_to_the_metrics",
    ),
    Mutation(
        "L is counted before tokens are rejected",
        "trainer/update.py",
        "advantages = advantages_of(batch.trajectories, counts, self.config)\n        measure",
        "advantages = advantages_of(batch.trajectories, batch.counts, self.config)\n        measure",
        f"{TRAINER}update_variants.py::test_what_is_rejected_has_no_part_in_the_divisor_or_the_centre_of_the_advantages",
    ),
    Mutation(
        "a trajectory is rejected by the sum over its tokens",
        "trainer/rejection.py",
        "trajectory_means(disagreement, counts)",
        "disagreement.new_tensor([part.sum() for part in disagreement.split(counts.tolist())])",
        f"{TRAINER}loss_variants.py::test_rejected_are_the_tokens_or_trajectories_outside_the_bounds",
    ),
    Mutation(
        "GSPO's ratio is that of the whole trajectory's probability",
        "trainer/loss.py",
        "trajectory_means(log_ratio, counts)",
        "trajectory_sums(log_ratio, counts)",
        f"{TRAINER}loss_variants.py::test_loss_and_gradient_are_the_papers",
    ),
    Mutation(
        "the importance of a trajectory is the mean of its tokens'",
        "trainer/loss.py",
        "trajectory_sums(mismatch, counts)",
        "trajectory_means(mismatch, counts)",
        f"{TRAINER}loss_variants.py::test_loss_and_gradient_are_the_papers",
    ),
    Mutation(
        "GRPO's mean over trajectories counts those without tokens",
        "trainer/aggregation.py",
        "np.count_nonzero(counts), 1))",
        "len(counts), 1))",
        f"{TRAINER}loss_variants.py::test_the_weights_of_an_update_follow_from_its_counts_alone",
    ),
    Mutation(
        "Dr. GRPO's constant follows the lengths",
        "trainer/aggregation.py",
        "(max(len(counts), 1) * longest))",
        "max(counts.sum(), 1))",
        f"{TRAINER}loss_variants.py::test_the_weights_of_an_update_follow_from_its_counts_alone",
    ),
    Mutation(
        "the KL penalty looks from the reference's side",
        "trainer/loss.py",
        '"reference", config.kl)[keep].detach() - logprobs)',
        '"reference", config.kl)[keep].detach().neg() + logprobs)',
        f"{TRAINER}loss_variants.py::test_loss_and_gradient_are_the_papers",
    ),
    Mutation(
        "the entropy bonus is a penalty",
        "trainer/loss.py",
        "loss = loss - config.entropy",
        "loss = loss + config.entropy",
        f"{TRAINER}update_variants.py::test_an_entropy_bonus_raises_the_entropy",
    ),
    Mutation(
        "drift is measured on the trajectory that was just trained",
        "trainer/receipts.py",
        "before.append(seen.get(trajectory.prompt_id))\n            seen[trajectory.prompt_id] = trajectory",
        "seen[trajectory.prompt_id] = trajectory\n            before.append(seen.get(trajectory.prompt_id))",
        f"{TRAINER}receipts.py::test_a_prompt_that_comes_twice_in_a_batch_is_visited_twice",
    ),
    Mutation(
        "drift is the distance of the means",
        "trainer/receipts.py",
        "np.abs(new.astype(np.float64) - old).sum()",
        "np.abs((new.astype(np.float64) - old).sum())",
        f"{TRAINER}receipts.py::test_drift_is_the_mean_distance_of_the_log_probs_and_nothing_where_there_are_none",
    ),
    Mutation(
        "a session's process is not stopped between calls",
        "workers/sandbox/forked.py",
        "os.kill(self.pid, signal.SIGSTOP)",
        "os.kill(self.pid, signal.SIGSTOP), os.kill(self.pid, signal.SIGCONT)",
        f"{SANDBOX}sessions.py::test_between_its_calls_a_process_is_stopped_whatever_it_says",
    ),
    Mutation(
        "any report ends the call that runs",
        "workers/sandbox/forked.py",
        "if token == self.token and how in REPORTS",
        "if how in REPORTS",
        f"{SANDBOX}sessions.py::test_a_report_forged_in_one_call_is_not_taken_for_the_end_of_another",
    ),
    Mutation(
        "the server keeps what was printed",
        "workers/sandbox/forked.py",
        "self.text[: self.length] = bytes(self.length)",
        "pass",
        f"{SANDBOX}sessions.py::test_what_one_session_says_is_not_in_the_memory_that_another_is_copied_from",
    ),
    Mutation(
        "the server keeps the code",
        "workers/sandbox/forked.py",
        "self.unsent[:sent] = bytes(sent)",
        "pass",
        f"{SANDBOX}sessions.py::test_what_one_session_says_is_not_in_the_memory_that_another_is_copied_from",
    ),
    Mutation(
        "a call's timers outlive it",
        "workers/sandbox/child.py",
        "signal.setitimer(timer, 0)",
        "pass",
        f"{SANDBOX}sessions.py::test_nothing_left_behind_by_a_call_prints_into_a_later_one",
    ),
    Mutation(
        "CPU time is counted for the session",
        "workers/sandbox/limits.py",
        "soft = math.ceil(used + self.seconds)",
        "soft = math.ceil(self.seconds)",
        f"{SANDBOX}life.py::test_cpu_time_is_granted_on_top_of_what_was_used",
    ),
    Mutation(
        "packages inside the standard library's folder can be read",
        "workers/sandbox/preload.py",
        ' if not entry.name.endswith("-packages")]',
        "]",
        f"{SANDBOX}preload.py::test_packages_are_no_part_of_the_standard_library_though_they_may_lie_in_its_folder",
    ),
]
