"""Real processes: what they leave behind, what is said when they die."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from pipeline.supervisor import ProcessFailed, Program, Supervisor
from tests.waiting import alive, wait_for


@pytest.fixture
def supervisor():
    supervisor = Supervisor(hurry=False)
    yield supervisor
    supervisor.hurry = True
    supervisor.stop()


def python(tmp_path, code, name="child", **options):
    return Program(name, [sys.executable, "-S", "-c", textwrap.dedent(code)], tmp_path / f"{name}.log", **options)


def number_in(path):
    return wait_for(lambda: path.exists() and path.read_text().strip() and int(path.read_text()))


def test_the_end_of_a_dead_childs_log_is_in_the_message(supervisor, tmp_path):
    supervisor.start(python(tmp_path, "print('line one'); raise SystemExit('the disk is on fire')"))
    (exit,) = wait_for(supervisor.check)
    assert exit.returncode == 1
    assert "child exited with 1" in str(exit)
    assert "the disk is on fire" in str(exit)
    assert str(tmp_path / "child.log") in str(exit)
    assert supervisor.processes == {}


def test_a_signal_that_killed_a_child_is_named(supervisor, tmp_path):
    process = supervisor.start(python(tmp_path, "import time; time.sleep(60)"))
    process.popen.kill()
    (exit,) = wait_for(supervisor.check)
    assert "child was killed by SIGKILL" in str(exit)


def test_a_program_that_does_not_exist_is_an_exit_with_its_name(supervisor, tmp_path):
    supervisor.start(Program("engine-0", ["/nowhere/python"], tmp_path / "engine-0.log"))
    (exit,) = wait_for(supervisor.check)
    assert exit.returncode == 1
    assert "/nowhere/python: No such file or directory" in str(exit)


def test_stop_lets_a_child_finish_within_its_grace(supervisor, tmp_path):
    code = """
        import signal, sys, time
        def finish(*_):
            time.sleep(0.3)
            print("finished", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, finish)
        print("up", flush=True)
        time.sleep(60)
    """
    program = python(tmp_path, code, grace_s=60)  # a disk that others write to may keep its last line waiting
    supervisor.start(program)
    wait_for(lambda: "up" in program.log.read_text())
    supervisor.stop(["child"])
    assert "finished" in program.log.read_text()


def test_a_child_that_ignores_sigterm_is_killed_with_its_children_after_its_grace(supervisor, tmp_path):
    code = f"""
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        grandchild = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        open({str(tmp_path / "pid")!r}, "w").write(str(grandchild.pid))
        time.sleep(60)
    """
    process = supervisor.start(python(tmp_path, code, grace_s=0.3))
    grandchild = number_in(tmp_path / "pid")
    begun = time.monotonic()
    supervisor.stop()
    assert time.monotonic() - begun < 5
    wait_for(lambda: not alive(process.popen.pid) and not alive(grandchild))


def test_what_a_dead_child_left_running_is_killed(supervisor, tmp_path):
    code = f"""
        import subprocess, sys
        grandchild = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        open({str(tmp_path / "pid")!r}, "w").write(str(grandchild.pid))
    """
    supervisor.start(python(tmp_path, code))
    grandchild = number_in(tmp_path / "pid")
    wait_for(supervisor.check)
    wait_for(lambda: not alive(grandchild))


def test_the_kernel_kills_the_children_of_a_launcher_that_is_sigkilled(tmp_path):
    code = f"""
        import sys, time
        from pathlib import Path
        from pipeline.supervisor import ProcessFailed, Program, Supervisor
        folder = Path({str(tmp_path)!r})
        sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
        process = Supervisor().start(Program("child", sleep, folder / "log"))
        (folder / "pid").write_text(str(process.popen.pid))
        time.sleep(60)
    """
    launcher = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    child = number_in(tmp_path / "pid")
    time.sleep(0.2)
    assert alive(child)
    launcher.kill()
    launcher.wait()
    wait_for(lambda: not alive(child))


def test_terminal_signals_do_not_reach_the_children(supervisor, tmp_path):
    process = supervisor.start(python(tmp_path, "import time; time.sleep(60)"))
    assert os.getpgid(process.popen.pid) != os.getpgid(0)


def test_restarts_come_after_growing_pauses_and_only_so_often(supervisor, tmp_path):
    supervisor.start(python(tmp_path, "raise SystemExit(3)"))
    (exit,) = wait_for(supervisor.check)
    assert supervisor.restart_later(exit, limit=2) == 1
    supervisor.restart_due()
    assert supervisor.processes == {}, "not before its pause is over"
    wait_for(lambda: supervisor.restart_due() or supervisor.processes)
    (exit,) = wait_for(supervisor.check)
    assert supervisor.restart_later(exit, limit=2) == 2
    supervisor.stop(), supervisor.restart_due()
    assert supervisor.processes == {}, "a planned restart is stopped too"
    assert supervisor.restart_later(exit, limit=2) is None


def test_a_child_that_ran_long_enough_starts_counting_anew(supervisor, tmp_path):
    process = supervisor.start(python(tmp_path, "raise SystemExit(3)"), failures=2)
    (exit,) = wait_for(supervisor.check)
    assert supervisor.restart_later(exit, limit=2, stable_s=60) is None
    process.started -= 61
    assert supervisor.restart_later(exit, limit=2, stable_s=60) == 1


def test_starting_a_child_costs_a_few_hundredths_of_a_second(tmp_path):
    from pipeline import die_with_parent

    argv = [sys.executable, "-S", "-E", die_with_parent.__file__, str(os.getpid()), "/bin/true"]
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        subprocess.run(argv, check=True)
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.15


def test_a_hurried_stop_grants_no_grace(supervisor, tmp_path):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    program = python(tmp_path, code, grace_s=30)
    process = supervisor.start(program)
    wait_for(lambda: "up" in program.log.read_text())
    supervisor.hurry = True
    supervisor.stop()
    assert process.popen.returncode == -signal.SIGKILL


def test_a_wait_ends_when_what_is_waited_for_is_there(supervisor, tmp_path):
    program = python(tmp_path, f"open({str(tmp_path / 'made')!r}, 'w'); import time; time.sleep(60)", serves=True)
    supervisor.start(program)
    supervisor.wait_until((tmp_path / "made").exists, program, 10)


def test_a_wait_ends_with_the_log_of_whatever_fails_meanwhile(supervisor, tmp_path):
    waited_for = python(tmp_path, "import time; time.sleep(60)")
    supervisor.start(waited_for)
    supervisor.start(python(tmp_path, "print('bye')", name="server", serves=True))
    with pytest.raises(ProcessFailed, match=r"(?s)server exited with 0.*bye"):
        supervisor.wait_until(lambda: False, waited_for, 10)


def test_a_wait_has_a_bound(supervisor, tmp_path):
    program = python(tmp_path, "import time; time.sleep(60)")
    supervisor.start(program)
    with pytest.raises(ProcessFailed, match="child took longer than 0 s"):
        supervisor.wait_until(lambda: False, program, 0.2)


def test_a_drain_can_be_shortened_but_not_prolonged(supervisor, tmp_path):
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
    supervisor.start(python(tmp_path, f"{stubborn}; time.sleep(60)", grace_s=50))
    wait_for(lambda: "up" in (tmp_path / "child.log").read_text())
    supervisor.drain("child")
    begun = time.monotonic()
    supervisor.stop(["child"], grace_s=0.3)
    assert 0.2 < time.monotonic() - begun < 5
