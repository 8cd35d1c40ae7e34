"""Modules outside the standard library: those asked for work, to their last lazily imported part, and no others do."""

import asyncio
import os
from pathlib import Path

import pip
import pytest
import redis
import sympy

from tests.workers.sandbox.conftest import sandbox_of
from workers.sandbox import Limits, PythonSandbox, SandboxUnavailable, launch, preload


@pytest.fixture(scope="module")
def run(loop):
    if os.geteuid() == 0 and not all(folder.stat().st_mode & 1 for folder in Path(sympy.__file__).parents):
        pytest.skip(f"nobody cannot read {sympy.__file__}, and what a package imports late is read as nobody")
    yield from sandbox_of(loop, seconds=30.0, preload=["sympy", "numpy.random", "math_verify"])


def test_a_module_asked_for_can_be_imported_and_computes(run):
    code = "import sympy as s\nx = s.symbols('x')\nprint(s.solve(x**2 - 5*x + 6, x), s.expand((x + 1)**2))"
    assert run(code).output == "[2, 3] x**2 + 2*x + 1\n"


def test_what_a_package_imports_late_is_found(run):
    late = ("sympy.parsing.latex", "sympy.stats", "numpy.polynomial")
    code = f"""
import importlib, sys
for name in {late}:
    print(name, name in sys.modules, importlib.import_module(name).__name__ == name)
import sympy, numpy
t = sympy.symbols('t')
f = sympy.Function('f')
print(sympy.dsolve(f(t).diff(t) - f(t)), sympy.integrate(sympy.exp(-t**2), (t, -sympy.oo, sympy.oo)))
print(numpy.linalg.solve(numpy.eye(2), [1, 2]))
"""
    result = run(code)
    assert result.error is None, result
    assert "sympy.stats False True\n" in result.output  # so that the test can fail
    assert result.output.endswith("Eq(f(t), C1*exp(t)) sqrt(pi)\n[1. 2.]\n")


def test_the_random_numbers_of_sessions_differ(run):
    code = "import numpy, random\nprint(numpy.random.rand(), random.random())"
    first, second = (run(code).output.split() for _ in range(2))
    assert first[0] != second[0] and first[1] != second[1]


def test_an_answer_is_judged_inside_with_alarms_that_work(run):
    code = """
from math_verify import parse, verify
def judged(gold, answer):
    return verify(parse(gold), parse(answer))
print(judged("$\\\\frac{1}{2}$", "$0.5$"), judged("$x^2+2x+1$", "$(x+1)^2$"), judged("$2$", "$3$"))
"""
    assert run(code).output == "True True False\n"


@pytest.mark.parametrize("module", ["pip", "redis", "workers.sandbox.connection", "pipeline"])
def test_no_other_package_can_be_imported(run, module):
    assert run(f"import {module}").output.startswith(("ModuleNotFoundError", "PermissionError"))


def test_no_other_package_can_be_read_wherever_the_interpreter_keeps_them(run):
    for path in (redis.__file__, pip.__file__, launch.__file__):
        assert run(f"open({path!r})").output.startswith("PermissionError"), path
    assert run(f"open({sympy.__file__!r}).close()\nprint('read')").output == "read\n"


def test_packages_are_no_part_of_the_standard_library_though_they_may_lie_in_its_folder():
    places = preload.standard_library()
    assert places.files and all(os.path.exists(path) for path in places.files)
    assert not [path for path in places.files if path.endswith("-packages") or path in places.folders]
    for folder in places.folders:  # names may be seen there, so the folder itself must not be one that can be read
        assert any(path.startswith(folder) for path in places.files)
        assert os.path.dirname(os.path.dirname(pip.__file__)) != folder


def test_a_package_can_be_read_and_not_written(run):
    code = "import os, sympy\nopen(os.path.join(os.path.dirname(sympy.__file__), 'escape.py'), 'w')"
    assert run(code).output.startswith("PermissionError")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "'asked_for': importing it raised ModuleNotFoundError"),
        ("1 / 0", "'asked_for': importing it raised ZeroDivisionError"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "'asked_for': importing it started 1 thread",
        ),
    ],
)
def test_a_module_that_cannot_be_preloaded_is_named_before_the_first_call(tmp_path, monkeypatch, source, message):
    if source:
        (tmp_path / "asked_for.py").write_text(source)

    async def start():
        async with PythonSandbox(Limits(30.0, 256, 4096), preload=["asked_for"]):
            pass

    settings = launch.environment()
    settings["PYTHONPATH"] += os.pathsep + str(tmp_path)
    monkeypatch.setattr("workers.sandbox.launch.environment", lambda: settings)
    with pytest.raises(SandboxUnavailable, match=r"environment\.tool_preload: " + message) as error:
        asyncio.run(start())
    assert error.value.code == "PRELOAD"
