"""What tests of processes wait with, and whether one still runs."""

import time
from pathlib import Path


def wait_for(condition, seconds=60, every=0.05):
    """What `condition` answers, once it is true; it is asked `every` so many seconds. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(every)
    return found


def alive(pid):
    """Not once it has ended, though nobody has waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
