"""The README names what is there."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_source_file_has_its_line_in_the_readme():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    sources = [
        ROOT / name
        for name in tracked
        if name.endswith((".py", ".lua")) and not name.startswith("tests/") and (ROOT / name).is_file()
    ]
    lines = (ROOT / "README.md").read_text().splitlines()
    names = {line.split()[0] for line in lines if line.startswith("  ") and line.strip()}
    missing = [str(path.relative_to(ROOT)) for path in sources if path.read_text().strip() and path.name not in names]
    assert not missing


def test_the_readmes_environment_is_the_one_that_the_tests_run():
    example = (ROOT / "tests" / "workers" / "guess_the_number.py").read_text().split('"""\n', 1)[1].strip()
    assert example in (ROOT / "README.md").read_text()
