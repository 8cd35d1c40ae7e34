"""The step: when it is skipped and what that leaves, at which learning rate it is made, and what is told of it."""

from tests.mutations.mutation import Mutation

TESTS = "tests/trainer/test_"

MUTATIONS = [
    Mutation(
        "a gradient that is not finite is applied",
        "trainer/step.py",
        'if np.isfinite([norm, metrics["loss"]]).all():',
        "if True:",
        f"{TESTS}step.py::test_a_step_without_a_finite_gradient_leaves_everything_as_it_was_and_the_next_one_goes_on",
    ),
    Mutation(
        "a skipped step is looked for in the loss alone",
        "trainer/step.py",
        'np.isfinite([norm, metrics["loss"]]).all()',
        'np.isfinite(metrics["loss"])',
        f"{TESTS}step.py::test_an_overflow_in_the_backward_pass_is_told_with_the_first_parameter_and_of_how_many",
    ),
    Mutation(
        "skipped steps are counted, in a row or not",
        "trainer/step.py",
        "                self._optimizer.step()\n            self.skipped_in_a_row = 0",
        "                self._optimizer.step()",
        f"{TESTS}step.py::test_one_step_more_than_may_be_skipped_in_a_row_ends_the_run",
    ),
    Mutation(
        "a row of skipped steps may be one longer",
        "trainer/step.py",
        "if self.skipped_in_a_row >= most:",
        "if self.skipped_in_a_row > most:",
        f"{TESTS}step.py::test_one_step_more_than_may_be_skipped_in_a_row_ends_the_run",
    ),
    Mutation(
        "a resume forgets the row of skipped steps",
        "trainer/loop.py",
        'state["skipped_in_a_row"] = self.updater.stepper.skipped_in_a_row',
        'state["skipped_in_a_row"] = 0',
        f"{TESTS}step.py::test_the_row_of_skipped_steps_is_counted_on_after_a_resume",
    ),
    Mutation(
        "an optimizer begins without its state",
        "trainer/step.py",
        '        optimizer.state[parameter] = {"step": torch.zeros((), device=parameter.device)} | moments\n',
        "        _ = moments\n",
        f"{TESTS}step.py::test_the_row_of_skipped_steps_is_counted_on_after_a_resume",
    ),
    Mutation(
        "the reference follows although every step was skipped",
        "trainer/update.py",
        ' and metrics["skipped"] < len(minibatches):',
        ":",
        f"{TESTS}step.py::test_a_step_without_a_finite_gradient_leaves_everything_as_it_was_and_the_next_one_goes_on",
    ),
    Mutation(
        "the schedule is one update late",
        "trainer/step.py",
        "learning_rate(version + 1,",
        "learning_rate(version,",
        f"{TESTS}step.py::test_the_learning_rate_is_the_schedules_also_after_a_resume",
    ),
    Mutation(
        "a schedule is at its lowest one step early",
        "trainer/schedule.py",
        "(step - 1 - warm_up) / (decay_steps - warm_up)",
        "(step - warm_up) / (decay_steps - warm_up)",
        f"{TESTS}schedule.py::test_after_the_warm_up_a_schedule_is_that_of_transformers",
    ),
    Mutation(
        "the alarm is never raised",
        "trainer/mismatch.py",
        "mismatch_kl >= self._limit",
        "False",
        f"{TESTS}mismatch.py::test_an_engine_that_disagrees_is_told_when_it_begins_and_when_it_ends_and_in_each_line_between",
    ),
    Mutation(
        "the alarm is told at every update",
        "trainer/mismatch.py",
        "if self.on and not before:",
        "if self.on:",
        f"{TESTS}mismatch.py::test_an_engine_that_disagrees_is_told_when_it_begins_and_when_it_ends_and_in_each_line_between",
    ),
    Mutation(
        "the alarm overlooks what is rejected",
        "trainer/update.py",
        "        metrics |= rejection\n",
        "        metrics = rejection | metrics\n",
        f"{TESTS}mismatch.py::test_what_is_rejected_for_its_mismatch_is_part_of_the_mismatch",
    ),
    Mutation(
        "FLOPs count all of attention's square",
        "trainer/throughput.py",
        "near * (near + 1) / 2 + (lengths - near) * near",
        "lengths * near",
        f"{TESTS}throughput.py::test_in_a_sliding_window_pairs_are_those_within",
    ),
    Mutation(
        "a budget is halved below the longest trajectory",
        "trainer/out_of_memory.py",
        "max(micro.tokens.numel() // 2, config.rollout.context_length)",
        "micro.tokens.numel() // 2",
        f"{TESTS}out_of_memory.py::test_a_budget_is_halved_from_what_failed_and_never_below_the_longest_trajectory",
    ),
]
