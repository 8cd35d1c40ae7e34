"""What tests of processes wait with."""

import time


def wait_for(condition, seconds=30):
    """What `condition` answers, once it is true; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
    return found
