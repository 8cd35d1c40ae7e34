"""A Docker engine of one's own: it changes nothing of the host's firewall, and leaves nothing when it ends.

Needs root and Debian's docker.io (dockerd, containerd, runc). Compose is the one of the test extra.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_for

NO_NETWORK_OF_ITS_OWN = ["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
ADDRESSES = ["--bridge=none", "--default-address-pool", "base=10.231.0.0/16,size=24"]


class NotHere(Exception):
    """What this machine lacks."""


@contextmanager
def engine(folder: Path) -> Iterator[dict[str, str]]:
    """Run dockerd with all that it keeps in `folder`; yields the environment in which `docker` speaks to it.

    Raises NotHere if that cannot be.
    """
    if os.geteuid() or not shutil.which("dockerd"):
        raise NotHere("a Docker engine needs root and docker.io")
    _forget(folder)  # an engine that was killed leaves what the next one does not understand
    folder.mkdir(parents=True)
    plugins = folder / "config" / "cli-plugins"
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(Path(sys.executable).with_name("docker-compose"))
    places = {name: folder / name for name in ("data", "exec", "pid", "socket")}
    command = ["dockerd", "--data-root", places["data"], "--exec-root", places["exec"], "--pidfile", places["pid"]]
    command += ["-H", f"unix://{places['socket']}", *NO_NETWORK_OF_ITS_OWN, *ADDRESSES]
    environment = os.environ | {
        "DOCKER_HOST": f"unix://{places['socket']}",
        "DOCKER_CONFIG": str(folder / "config"),
        "DOCKER_BUILDKIT": "0",  # Compose refuses the buildx of Debian 12
    }
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def is_up() -> bool:
        if daemon.poll() is not None:
            raise NotHere(f"dockerd ended: {(folder / 'log').read_text()[-2000:]}")
        return subprocess.run(["docker", "version"], env=environment, capture_output=True).returncode == 0

    try:
        wait_for(is_up, 60)
        yield environment
    finally:
        daemon.terminate()
        try:
            daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        _forget(folder)


def _forget(folder: Path) -> None:
    if folder.exists():
        mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for place in sorted((m for m in mounted if m.startswith(f"{folder}/")), reverse=True):
            subprocess.run(["umount", "-l", place], check=True)
        # 100,000 files; a disk mounted with `discard` is asked for each, and answers many at once as soon as one
        side_by_side = "find . -type f -print0 | xargs -0 --max-procs 16 --max-args 200 rm --force"
        subprocess.run(side_by_side, shell=True, cwd=folder, check=True)
        shutil.rmtree(folder)
