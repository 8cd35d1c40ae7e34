"""Episodes and the Python tool: what counts as generated, what a call may leave behind."""

from tests.mutations.mutation import Mutation

SANDBOX = "tests/workers/sandbox/test_"
JUDGE = "tests/workers/environments/test_judge.py"

MUTATIONS = [
    Mutation(
        "a worker marks tool tokens as generated",
        "workers/transcript.py",
        "loss_mask[start : start + len(logprobs)] = 1",
        "loss_mask[start:] = 1",
        "tests/workers/test_episode.py::test_masks_segments_and_logprobs_cover_exactly_what_was_generated",
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
        "soft = math.ceil(used + (self.cpu_seconds or self.seconds))",
        "soft = math.ceil(self.cpu_seconds or self.seconds)",
        f"{SANDBOX}life.py::test_cpu_time_is_granted_on_top_of_what_was_used",
    ),
    Mutation(
        "packages inside the standard library's folder can be read",
        "workers/sandbox/preload.py",
        ' if not entry.name.endswith("-packages")]',
        "]",
        f"{SANDBOX}preload.py::test_packages_are_no_part_of_the_standard_library_though_they_may_lie_in_its_folder",
    ),
    Mutation(
        "an answer may call anything in its verifier",
        "workers/environments/evaluated.py",
        "isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS",
        "True",
        f"{JUDGE}::test_arithmetic_and_lists_are_harmless_and_nothing_else",
    ),
    Mutation(
        "a verdict may be any number",
        "workers/environments/judge.py",
        "if 0 <= score <= 1",
        "if score == score",
        f"{JUDGE}::test_a_verdict_is_a_number_from_0_to_1",
    ),
    Mutation(
        "the calls of a step have no end together",
        "workers/environments/python_tool.py",
        "asyncio.timeout_at(until)",
        "asyncio.timeout_at(None)",
        "tests/workers/environments/test_math_tir.py::test_a_call_that_gets_no_place_in_time_is_told_so",
    ),
]
