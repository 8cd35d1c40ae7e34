"""What code finds ready: modules that the fork server imports once, before anything is confined.

standard library    imported here where it is common, else read from disk by the child that imports it
other packages      only those asked for, imported here; their folders stay readable, because large packages import
                    parts of themselves late (sympy its solvers); a package beside them is not found
"""

import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass

# Ready at once in every child, also where nobody cannot read the interpreter's folder (a home with mode 700).
COMMON = (  # noqa: SIM905
    "abc array ast base64 bisect calendar cmath collections contextlib copy csv ctypes dataclasses datetime decimal "
    "difflib encodings.ascii encodings.latin_1 enum fractions functools graphlib hashlib heapq inspect io itertools "
    "json keyword locale math numbers operator pprint queue random re resource secrets statistics string struct "
    "textwrap threading time timeit traceback types typing unicodedata zlib "
    "_pydecimal _pylong _strptime"  # imported by others on their first use; _pylong from Python 3.12
).split()


@dataclass(frozen=True)
class Places:
    """What code may see of the disk. files: files and whole folders to read; folders: only the names in them."""

    files: list[str]
    folders: list[str]


def standard_library() -> Places:
    """Import what is common of it; other packages, which may lie inside its folder, are no part of it."""
    for name in COMMON:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    # Not sysconfig's own "platstdlib": in a virtual environment that is the folder of all its packages.
    compiled = sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})
    folders = {path for path in (sysconfig.get_path("stdlib"), compiled) if os.path.isdir(path)}
    entries = [entry for folder in folders for entry in os.scandir(folder) if not entry.name.endswith("-packages")]
    return Places([entry.path for entry in entries if os.path.exists(entry)], list(folders))  # some are broken links


def packages(names: Iterable[str]) -> Places:
    """Import modules that a run asks for; all that came with them may be read. Raises ImportError."""
    before = set(sys.modules)
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise ImportError(f"{name!r}: importing it raised {type(error).__name__}: {error}") from error
        if (threads := len(os.listdir("/proc/self/task"))) > 1:
            # A fork copies only the thread that forks: a lock which another one holds is never released in the child.
            raise ImportError(f"{name!r}: importing it started {threads - 1} thread(s), and children are forks")
    if "sympy" in sys.modules:
        warm_sympy()
    folders = []
    for name in set(sys.modules) - before - sys.stdlib_module_names:
        if "." not in name:
            for folder in getattr(sys.modules[name], "__path__", ()):
                folders += [folder, f"{folder}.libs"]  # the latter: libraries that a wheel brings, loaded late too
    return Places([path for path in folders if os.path.isdir(path)], [])


def warm_sympy() -> None:
    """Do a little of what is asked most: what SymPy imports and caches at first use costs a child 100 ms and more."""
    import sympy

    x, y = sympy.symbols("x y")
    sympy.solve([x + y - 3, x - y - 1])
    sympy.simplify(sympy.sin(x) ** 2 + sympy.cos(x) ** 2)
    sympy.integrate(x * sympy.exp(x), x)
    answers = (
        *(sympy.solve(x**2 - 5 * x + 6, x), sympy.expand((x + 1) ** 3), sympy.factor(x**2 - 1), sympy.factorint(60)),
        *(sympy.summation(x, (x, 1, 10)), sympy.limit(sympy.sin(x) / x, x, 0), sympy.Matrix([[1, 2], [3, 4]]).inv()),
        *(sympy.sqrt(8) + sympy.Rational(1, 3), sympy.N(sympy.pi, 20), sympy.diff(x**2, x), sympy.sympify("x/2")),
    )
    str(answers)


def nothing_else() -> None:
    """From here on nothing is found but the standard library and what has been imported."""
    library = sysconfig.get_path("stdlib")
    sys.path[:] = [path for path in sys.path if path.startswith(library) and not path.endswith("-packages")]
