"""Look-alikes of the official images, made of Debian's packages, for a machine that no image hub answers.

    mmdebstrap ─▶ debian ─▶ python:3.11-slim-bookworm      as the Dockerfiles name it
                       └──▶ redis:7.2.11-bookworm          as compose.yaml does; Debian's own 7.0

They show that Dockerfiles, wiring, permissions, health and restarts are right, not what the official images contain.
The machine's certificates and local folders of wheels are copied in, since a build knows nothing of the host's pip.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.stack.engine import NotHere

ROOT = Path(__file__).parent.parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headrace" / "debian-bookworm.tar"
MIRROR = "http://deb.debian.org/debian"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def make_python(environment: dict[str, str]) -> None:
    """In the engine that `environment` names. Raises NotHere, also if a build reaches no package index."""
    python = _named(ROOT / "docker" / "headrace" / "Dockerfile", r"^FROM (python:\S+)")
    if not CACHE.exists():
        _bootstrap()
    subprocess.run(["docker", "import", CACHE, "debian-look-alike"], env=environment, check=True, capture_output=True)
    with tempfile.TemporaryDirectory() as context:
        wheels = Path(context) / "wheels"
        wheels.mkdir()
        for folder in os.environ.get("PIP_FIND_LINKS", "").split():
            for wheel in Path(folder).glob("*.whl") if Path(folder).is_dir() else ():
                os.link(wheel, wheels / wheel.name) if _same_disk(wheel, wheels) else _copy(wheel, wheels)
        reached = "RUN pip download --quiet --no-deps --no-cache-dir --dest /tmp/reached click && rm -r /tmp/reached"
        _build(environment, context, python, "COPY wheels /opt/wheels", "ENV PIP_FIND_LINKS=/opt/wheels", reached)


def make_redis(environment: dict[str, str]) -> None:
    """Upon what `make_python` made. Raises NotHere."""
    redis = _named(ROOT / "compose.yaml", r"image: (redis:\S+)")
    with tempfile.TemporaryDirectory() as context:
        install = "RUN apt-get update && apt-get install -y --no-install-recommends redis-server redis-tools"
        _build(environment, context, redis, install, "WORKDIR /data", "RUN chown redis:redis /data", "VOLUME /data")


def _named(path: Path, pattern: str) -> str:
    return re.search(pattern, path.read_text(), re.MULTILINE)[1]


def _bootstrap() -> None:
    if not shutil.which("mmdebstrap"):
        raise NotHere("the look-alikes need mmdebstrap")
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    draft = CACHE.with_suffix(".new")
    command = ["timeout", "600", "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--format=tar"]
    command += ["--include=python3-pip,python3-venv,python3-dev,ca-certificates"]
    for hook in (
        f'cp {CERTIFICATES} "$1{CERTIFICATES}"',
        'ln -s /usr/bin/python3 "$1/usr/local/bin/python"',
        'rm -f "$1/usr/lib/python3.11/EXTERNALLY-MANAGED"',
    ):
        command += ["--customize-hook", hook]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)  # dpkg waits for the disk after each file
        try:
            done = subprocess.run(
                [*command, "bookworm", draft, MIRROR],
                env=os.environ | {"TMPDIR": folder},
                capture_output=True,
                text=True,
            )
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
    if done.returncode:
        raise NotHere(f"no mirror of Debian gives the look-alikes: {done.stderr[-2000:]}")
    draft.rename(CACHE)


def _build(environment: dict[str, str], context: str, tag: str, *lines: str) -> None:
    settings = f"ENV PIP_CERT={CERTIFICATES} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_DEFAULT_TIMEOUT=180 LANG=C.UTF-8"
    text = "\n".join(["FROM debian-look-alike", settings, *lines, ""])
    (Path(context) / "Dockerfile").write_text(text)
    command = ["timeout", "600", "docker", "build", "--network", "host", "--tag", tag, context]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:  # whatever the reason is: nothing of ours is in it yet
        raise NotHere(f"no look-alike of {tag}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def _same_disk(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


def _copy(wheel: Path, folder: Path) -> None:
    (folder / wheel.name).write_bytes(wheel.read_bytes())
