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
    Mutation(
        "a backup has a ledger that has forgotten the batches of its checkpoint",
        "pipeline/backup.py",
        'if int(cut.fields["oldest"]) > covered:',
        "if False:",
        f"{TESTS}backup.py::test_what_a_checkpoint_covers_meanwhile_is_read_anew",
    ),
    Mutation(
        "a backup lacks trajectories that went while it was read",
        "pipeline/ledger_copy.py",
        "if whole and count < stream.length:",
        "if False:",
        f"{TESTS}backup.py::test_payloads_that_go_while_they_are_read_are_noticed",
    ),
    Mutation(
        "a copy of a stream goes on beyond the moment of the cut",
        "pipeline/ledger_copy.py",
        "client.xrange(stream.key, after, stream.last, count=AT_ONCE)",
        'client.xrange(stream.key, after, "+", count=AT_ONCE)',
        "tests/pipeline/test_ledger_copy.py::test_what_comes_after_the_moment_of_the_cut_is_not_in_it",
    ),
    Mutation(
        "a backup's file writes to any key",
        "pipeline/ledger_copy.py",
        "        _check(run, command)\n",
        "",
        "tests/pipeline/test_ledger_copy.py::test_a_forged_file_writes_nothing_but_its_own_run",
    ),
    Mutation(
        "a restore that fails leaves keys behind",
        "pipeline/restore.py",
        "        except BaseException:  # Ctrl-C, too\n            ledger_copy.forget(client, run)\n",
        "        except BaseException:\n",
        f"{TESTS}backup.py::test_a_restore_that_fails_leaves_nothing_behind",
    ),
    Mutation(
        "a setting that is new makes another run",
        "pipeline/config.py",
        ", exclude_defaults=True",
        "",
        "tests/pipeline/test_config.py::test_a_setting_that_a_newer_headrace_adds_makes_no_other_run",
    ),
]
