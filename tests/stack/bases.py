"""Look-alikes of the official images, made of Debian's packages, for a machine that no image hub answers.

    debootstrap ─▶ debian ─▶ python:3.11-slim-bookworm      as the Dockerfiles name it
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
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def make_bases(environment: dict[str, str]) -> None:
    """Both images, in the engine that `environment` names. Raises NotHere, also if a build reaches no package index."""
    python = _named(ROOT / "docker" / "headrace" / "Dockerfile", r"^FROM (python:\S+)")
    redis = _named(ROOT / "compose.yaml", r"image: (redis:\S+)")
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
    with tempfile.TemporaryDirectory() as context:
        install = "RUN apt-get update && apt-get install -y --no-install-recommends redis-server redis-tools"
        _build(environment, context, redis, install, "WORKDIR /data", "RUN chown redis:redis /data", "VOLUME /data")


def _named(path: Path, pattern: str) -> str:
    return re.search(pattern, path.read_text(), re.MULTILINE)[1]


def _bootstrap() -> None:
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    packages = "python3-pip,python3-venv,python3-dev,ca-certificates"
    with tempfile.TemporaryDirectory() as root:
        command = ["timeout", "600", "debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", root]
        if not shutil.which("debootstrap") or subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise NotHere("the look-alikes need debootstrap and a mirror of Debian")
        (Path(root) / str(CERTIFICATES)[1:]).write_bytes(CERTIFICATES.read_bytes())
        (Path(root) / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        (Path(root) / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink(missing_ok=True)
        draft = CACHE.with_suffix(".new")
        subprocess.run(["tar", "-C", root, "-cf", draft, "."], check=True)
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
