"""Every wait in the code, what bounds it, and what a person reads meanwhile: nothing waits for ever or in silence.

The code is searched for whatever waits; a wait that is not in the table below, or no longer there, fails.
"""

import ast
import importlib
from pathlib import Path

import pytest

from pipeline.config import Config
from pipeline.redis_client import connect
from tests.fixtures_ledger import refusals_of_reserve
from workers.admission import WAITS as REFUSALS

ROOT = Path(__file__).parents[1]
ROOMS = ("advantage", "pipeline", "workers", "trainer")
CALLS = {"sleep", "wait", "wait_for", "blpop", "xread", "result", "acquire"}

# What bounds it: a setting, a constant of its module, "(an argument)", or one of
ENDS = {
    "SIGKILL",
    "Ctrl-C",
    "one second",
    "one read of the ledger",
    "the client's own time limit",
    "the worker's end",
    "the disk's answer",
}
# What is said: the module that says it in `headrace status` or in the log, and words of the sentence; or
BELL = "nothing: it is woken by events, and whoever waits for it says so"
SHORT = "nothing: it is over within a second or two"
ALONE = "nothing: a person's own command, or a step that `headrace up` prints"

WAITS = {
    "pipeline/compose_stack.py _wait_until_ended": ("DRAIN_S", ALONE),
    "pipeline/coordinator.py Coordinator.wait": ("(timeout_s)", BELL),
    "pipeline/engine_command.py _serve": ("END_S", BELL),
    "pipeline/engines.py Engine._load": ("(timeout_s)", "pipeline/engine_fleet.py: to serve version"),
    "pipeline/engines.py Engine._stand_still": ("BUSY_S", SHORT),
    "pipeline/engines.py Engine.drain": ("(timeout_s)", "pipeline/engine_keeper.py: draining"),
    "pipeline/events.py wait": ("(timeout_s)", BELL),
    "pipeline/launch.py Launch.train": ("trainer.wait_timeout_s", "pipeline/ledger_view.py: buffer {head}:"),
    "pipeline/ledger_view.py LedgerView.wait_for_run": (
        "(timeout_s)",
        "pipeline/ledger_view.py: to be created by the coordinator",
    ),
    "pipeline/onlooker.py Onlooker.watching": ("(period_s)", ALONE),
    "pipeline/redis_client.py connect": ("(timeout_s)", ALONE),
    "pipeline/redis_client.py patient": ("(away_s)", "pipeline/redis_client.py: Redis does not answer"),
    "pipeline/redis_server.py RedisServer._wait_until_it_answers": ("(timeout_s)", ALONE),
    "pipeline/redis_server.py RedisServer.start": ("SIGKILL", SHORT),
    "pipeline/redis_server.py RedisServer.stop": ("(timeout_s)", ALONE),
    "pipeline/reports.py down": ("DOWN_TIMEOUT_S", ALONE),
    "pipeline/reports.py events": ("Ctrl-C", ALONE),
    "pipeline/run_folder.py _facts": ("one second", SHORT),
    "pipeline/run_folder.py locked": ("REPORT_S", ALONE),
    "pipeline/run_folder.py wait_for": ("(timeout_s)", ALONE),
    "pipeline/supervisor.py Process.kill_group": ("SIGKILL", SHORT),
    "pipeline/supervisor.py Supervisor.stop": ("(grace_s)", "workers/worker.py: its last"),
    "pipeline/supervisor.py Supervisor.wait_until": ("(timeout_s)", ALONE),
    "pipeline/tensorboard.py follow": ("Ctrl-C", ALONE),
    "pipeline/transfer.py _hear": ("(end)", "pipeline/engine_fleet.py: to serve version"),
    "pipeline/transfer.py take": ("one second", BELL),
    "pipeline/watch.py Watch._look_after_engines": ("LOOK_S", "pipeline/watch.py: the next version"),
    "pipeline/watch.py Watch._repeat": ("(pause_s)", "pipeline/watch.py: the next version"),
    "pipeline/weights_and_biases.py follow": ("Ctrl-C", ALONE),
    "trainer/broadcast.py _join": ("(limit)", "pipeline/engine_fleet.py: to serve version"),
    "trainer/broadcast.py _listen": ("PAUSE_S", BELL),
    "trainer/broadcast.py broadcasting": ("END_S", SHORT),
    "trainer/broadcast.py send": ("engines.load_timeout_s", "pipeline/engine_fleet.py: to serve version"),
    "trainer/cold_start.py prepare": ("TRACES_S", ALONE),
    "trainer/loop.py Trainer._next_batch": ("trainer.wait_timeout_s", "pipeline/ledger_view.py: buffer {head}:"),
    "trainer/prefetch.py Prefetch._look": ("LOOK_S", BELL),
    "trainer/prefetch.py Prefetch.take": ("the client's own time limit", SHORT),
    "trainer/tensor_writer.py Writer.finish": ("the disk's answer", "trainer/loop.py: weights {"),
    "trainer/tensor_writer.py Writer.put": ("the disk's answer", "trainer/loop.py: weights {"),
    "trainer/tensor_writer.py _File._add": ("the disk's answer", "trainer/loop.py: weights {"),
    "trainer/tensor_writer.py _File._end": ("the disk's answer", "trainer/loop.py: weights {"),
    "workers/continuation.py Continuation._generate": (
        "environment.episode_timeout_s",
        "pipeline/ledger_view.py: most urgent: prompt",
    ),
    "workers/episode.py Episode.play": (
        "environment.episode_timeout_s",
        "pipeline/ledger_view.py: most urgent: prompt",
    ),
    "workers/eval_host.py EvalHost.host": ("LOOK_S", "pipeline/watch.py: the evaluation of version"),
    "workers/environments/alfworld/games.py Games._end": ("SIGKILL", SHORT),
    "workers/environments/conformance/rules.py closes": ("CLOSE_S", ALONE),
    "workers/environments/conformance/trial.py Trial._call": ("one second", ALONE),
    "workers/environments/conformance/trial.py _beat": ("one second", ALONE),
    "workers/environments/examples/model_judge.py ModelJudge._grade": (
        "PAUSE_S",
        "pipeline/ledger_view.py: most urgent: prompt",
    ),
    "workers/evaluate.py Scorer.outcome": ("eval.timeout_s", "pipeline/watch.py: the evaluation of version"),
    "workers/group.py Group._member": ("FIRST_PAUSE_S", SHORT),
    "workers/group.py Group.play": ("buffers.max_age_s", "pipeline/ledger_view.py: most urgent: prompt"),
    "workers/ledger.py Bell.listen": ("BATCH_S", BELL),
    "workers/ledger.py Ledger.__call__": ("REDIS_AWAY_S", "workers/ledger.py: the ledger has not answered for"),
    "workers/routing.py Routes.choose": ("engines.start_timeout_s", "workers/worker.py: an engine to go on with"),
    "workers/routing.py Routes.refresh": ("one read of the ledger", SHORT),
    "workers/sandbox/client.py PythonSandbox.close": ("DEATHS_IN_A_ROW", "workers/sandbox/client.py: fork server"),
    "workers/sandbox/client.py PythonSandbox.server": ("DEATHS_IN_A_ROW", "workers/sandbox/client.py: fork server"),
    "workers/sandbox/client.py Session.run": (
        "environment.step_timeout_s",
        "pipeline/ledger_view.py: most urgent: prompt",
    ),
    "workers/sandbox/connection.py Connection.close": ("SIGKILL", SHORT),
    "workers/sandbox/server.py ForkServer.serve": ("the worker's end", BELL),
    "workers/traces.py main": ("MODEL_S", ALONE),
    "workers/traces.py play_all": ("PAUSES_S", ALONE),
    "workers/worker.py Worker._admit": ("LOOK_AGAIN_S", "workers/admission.py: a place in the buffers"),
    "workers/worker.py Worker._finish": ("rollout.grace_s", "workers/worker.py: its last"),
    "workers/worker.py Worker._renew": ("buffers.lease_s", BELL),
    "workers/worker.py Worker._report": ("REPORT_S", BELL),
    "workers/worker.py Worker.run": ("rollout.grace_s", "workers/worker.py: its last"),
}


def test_every_wait_is_in_the_table():
    assert found_waits() == WAITS.keys()


@pytest.mark.parametrize("where", WAITS)
def test_what_bounds_a_wait_and_what_is_said_meanwhile_exist(where):
    (path, scope), (bound, said) = where.split(), WAITS[where]
    section, _, key = bound.partition(".")
    if section in Config.model_fields:
        assert key in type(Config.model_fields[section].get_default(call_default_factory=True)).model_fields
    elif bound.startswith("("):
        assert bound[1:-1] in arguments_of(path, scope)
    elif bound not in ENDS:
        assert hasattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), bound)
    if said not in (BELL, SHORT, ALONE):
        module, _, words = said.partition(": ")
        assert any(words in text for text in texts((ROOT / module).read_text()))


def test_a_redis_that_does_not_answer_is_waited_for_with_a_bound(redis_url):
    with connect(redis_url) as client:
        connection = client.connection_pool.make_connection()
        assert 0 < connection.socket_timeout <= 30 and 0 < connection.socket_connect_timeout <= 30


def test_whatever_reserve_refuses_a_worker_says_what_it_waits_for():
    """Of an engine and a pause it asks for the cause: workers/admission.py."""
    assert refusals_of_reserve() == REFUSALS.keys() | {"ENGINE", "PAUSED"}


def found_waits():
    found = set()
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            path = file.relative_to(ROOT).as_posix()
            found |= {f"{path} {scope}" for scope in scopes_that_wait(ast.parse(file.read_text()))}
    return found


def scopes_that_wait(tree):
    """Class.method or function, the outermost, of each call that waits, and of each lock that is taken."""
    for outer in tree.body:
        members = outer.body if isinstance(outer, ast.ClassDef) else [outer]
        for member in members:
            if any(waits(node) or takes(node) for node in ast.walk(member)):
                name = getattr(member, "name", "module")
                yield f"{outer.name}.{name}" if isinstance(outer, ast.ClassDef) else name


def waits(node):
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    at_once = any(word.arg == "blocking" for word in node.keywords)
    return name in CALLS and not at_once


def takes(node):
    """Locks, semaphores and the like are made before they are entered."""
    return isinstance(node, ast.AsyncWith) and any(not isinstance(item.context_expr, ast.Call) for item in node.items)


def texts(source):
    """The strings of a module, f-strings as they are written; docstrings are shown to nobody."""
    tree = ast.parse(source)
    documented = (node for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list) and node.body)
    docstrings = {id(node.body[0].value) for node in documented if isinstance(node.body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield ast.get_source_segment(source, node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def arguments_of(path, scope):
    tree = ast.parse((ROOT / path).read_text())
    for name in scope.split("."):
        tree = next(node for node in tree.body if getattr(node, "name", "") == name)
    arguments = tree.args
    return {argument.arg for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
