"""Is the process of this container alive? Exit code 0 if it has a line in the run's Redis, which is gone 30 s after its
last word (see pipeline/progress.py), unless it had said that it would be quiet for longer."""

import os
import socket
import sys
import tomllib
from pathlib import Path

from pipeline.progress import read_processes
from pipeline.redis_client import connect

run = tomllib.loads(Path(os.environ["HEADRACE_RUN"]).read_text())["run"]["name"]
hosts = [process["host"] for process in read_processes(connect(os.environ["REDIS_URL"], timeout_s=2), run)]
if socket.gethostname() not in hosts:
    sys.exit(f"{socket.gethostname()} has no line in hr:{{{run}}}:processes; there: {', '.join(hosts) or 'none'}")
