"""What code prints, how it ends, and what that is called."""

import pytest


def test_stdout_and_stderr_come_back_together_in_the_order_they_were_printed(run):
    result = run("import sys\nprint('one')\nprint('two', file=sys.stderr)\nprint('three')")
    assert (result.output, result.error) == ("one\ntwo\nthree\n", None)
    assert 0 < result.seconds < 20


def test_an_exception_is_one_line_as_python_prints_it_after_what_was_printed_before(run):
    result = run("print('before')\nprint(1 / 0)")
    assert (result.output, result.error) == ("before\nZeroDivisionError: division by zero\n", "exception")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x = (", "SyntaxError: '(' was never closed\n"),
        ("'\ud800'", "UnicodeEncodeError: "),
        ("raise ValueError('a\\nb')", "ValueError: a\nb\n"),
        ("class E(Exception):\n    def __str__(self): raise 1\nraise E", "E: <exception str() failed>\n"),
        ("def f(): return f()\nf()", "RecursionError: maximum recursion depth exceeded"),
        ("input()", "EOFError: EOF when reading a line\n"),
        ("raise SystemExit('bye')", "bye\n"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt\n"),
    ],
)
def test_every_way_to_fail_ends_with_its_line(run, code, line):
    result = run(code)
    assert line in result.output
    assert result.error == "exception"


def test_sys_exit_without_a_status_is_a_normal_end(run):
    assert run("print('done')\nraise SystemExit").error is None


@pytest.mark.parametrize(
    "module",
    ["math", "fractions", "itertools", "functools", "decimal", "statistics", "re", "collections", "random", "json"],
)
def test_the_standard_library_for_mathematics_can_be_imported(run, module):
    assert run(f"import {module}\nprint({module}.__name__)").output == f"{module}\n"


def test_mathematics_works_inside(run):
    code = """
import decimal, fractions, itertools, math, random, statistics
from collections import Counter
from dataclasses import dataclass

@dataclass
class Point:
    x: "int"

decimal.getcontext().prec = 30
print(math.comb(10, 3), fractions.Fraction(1, 3) + 1, statistics.mean([1, 2, 4]), decimal.Decimal(2).sqrt())
print(sum(1 for p in itertools.permutations(range(5)) if p[0] < p[1]), Counter("abca")["a"], Point(3), 2**4000 > 0)
"""
    assert run(code).output == "120 4/3 2.3333333333333335 1.41421356237309504880168872421\n60 2 Point(x=3) True\n"


def test_nothing_is_left_for_the_next_call(run):
    run("import math, builtins\nmath.pi = 3\nbuiltins.leak = 1\nx = 1")
    assert run("import math, builtins\nprint(math.pi > 3, hasattr(builtins, 'leak'), 'x' in dir())").output == (
        "True False False\n"
    )


def test_random_numbers_differ_between_calls(run):
    assert run("import random\nprint(random.random())").output != run("import random\nprint(random.random())").output


def test_output_beyond_the_limit_is_cut_at_the_byte_and_marked(run):
    result = run("print('x' * 10_000_000)")
    assert result.output == "x" * 4096 + "\n[output truncated after 4096 bytes]"
    assert result.error == "output"


def test_output_of_exactly_the_limit_is_whole(run):
    result = run("print('x' * 4095)")
    assert (len(result.output), result.error) == (4096, None)


def test_output_that_never_ends_stops_at_once(run):
    result = run("while True: print('more')")
    assert result.error == "output"
    assert result.seconds < 10


def test_a_character_is_never_cut_in_half(run):
    result = run("print('é' * 3000, end='')")
    assert result.output.startswith("é" * 2048 + "\n[")
    result = run("print('a' + 'é' * 3000, end='')")
    assert result.output.startswith("a" + "é" * 2047 + "\n[")


def test_bytes_that_are_no_text_come_back_as_text(run):
    assert run("import os\n_ = os.write(1, bytes([255, 65]))").output == "\ufffdA"


def test_what_was_printed_before_a_timeout_is_kept(run_briefly):
    result = run_briefly("print('so far')\nwhile True: pass")
    assert (result.output, result.error) == ("so far\n", "timeout")
    assert 0.3 <= result.seconds < 5
