"""What a run goes on from: found whole or set aside, with all that belongs to its cut; and what a fork takes of it."""

from tests.mutations.mutation import Mutation

TESTS = "tests/trainer/test_"

MUTATIONS = [
    Mutation(
        "a checkpoint's files are there, whatever is in them",
        "pipeline/checkpoint_folder.py",
        "if digest != files[name]:",
        "if False:",
        f"{TESTS}damage.py::test_a_damaged_checkpoint_is_named_and_the_one_before_stands_in",
    ),
    Mutation(
        "a Join keeps no batch below the checkpoint it is made at",
        "pipeline/lua/join.lua",
        "local kept = behind and checkpoint or checkpoint > newest and newest or oldest",
        "local kept = checkpoint",
        "tests/pipeline/test_trainer_calls.py::"
        "test_a_trainer_that_finds_its_checkpoint_damaged_may_come_back_at_the_one_before",
    ),
    Mutation(
        "a shuffle begins its epoch again when Redis is replaced",
        "pipeline/lua/add_prompts.lua",
        "epoch + visits",
        "epoch",
        "tests/pipeline/test_checkpoint_folder.py::"
        "test_prompts_that_a_checkpoint_has_are_in_another_redis_what_they_were",
    ),
    Mutation(
        "what one rank cannot write is an error of its own",
        "trainer/checkpoint.py",
        "next((error for _, error in every if error), None)",
        "error",
        f"{TESTS}checkpoint.py::test_a_checkpoint_that_one_rank_cannot_write_ends_all_ranks_with_that_message",
    ),
    Mutation(
        "a fork's optimizer is set as its parent's was",
        "trainer/checkpoint.py",
        "            group.update(own)\n",
        "            pass\n",
        f"{TESTS}fork.py::test_a_fork_goes_on_with_policy_optimizer_and_evidence_and_its_own_settings",
    ),
    Mutation(
        "evidence of a fork is as fresh as if it had just been gathered",
        "pipeline/fork.py",
        'faded = rho ** (event - prompt["event"])',
        "faded = 1.0",
        f"{TESTS}fork.py::test_evidence_is_as_faded_as_it_was",
    ),
    Mutation(
        "a trainer that comes back knows nothing of the prompts until its first checkpoint",
        "trainer/loop.py",
        "        self._on_first(self._read_prompts)\n",
        "",
        f"{TESTS}loop_redis.py::test_a_redis_that_goes_before_a_resumed_trainers_first_checkpoint_costs_no_evidence",
    ),
]
