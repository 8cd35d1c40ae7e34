"""What `headrace doctor` finds about this machine: GPUs, shared memory, ports, memory, Docker Compose.

What only some runs need is asked for only if the run's file needs it.
"""

import os
import re
import shutil
import socket
import subprocess

from pipeline import ports, programs
from pipeline.config import Config
from pipeline.run_folder import holder_of

MEMORY_GB = 4
SHARED_MEMORY_GB = 1  # NCCL takes some tens of MB a GPU, and a container gives 64 MB unless it is told
COMPOSE = (2, 24)  # depends_on with required: false, secrets from the environment
ASK_S = 15
IMPORT_S = 120  # PyTorch, on a disk that is asked for it for the first time
Finding = tuple[bool, str, str]  # whether it will do, what was found, what to do


def loopback() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
            return True, "127.0.0.1 takes connections", ""
    except OSError as error:
        return False, f"127.0.0.1: {error}", "bring the loopback interface up: `ip link set lo up`"


def memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return total >= MEMORY_GB, f"{total:.0f} GB of memory", f"the demo wants {MEMORY_GB} GB or more"


def shared_memory(config: Config | None) -> Finding:
    wanted = config is not None and (len(config.trainer.gpus) > 1 or config.engines.tp > 1)
    if not os.path.isdir("/dev/shm"):
        return not wanted, "no /dev/shm", "mount it: `mount -t tmpfs -o size=8g tmpfs /dev/shm`"
    size = shutil.disk_usage("/dev/shm").total / 1e9
    return (
        not wanted or size >= SHARED_MEMORY_GB,
        f"{size:.1f} GB of shared memory",
        f"several GPUs want {SHARED_MEMORY_GB} GB or more: `mount -o remount,size=8g /dev/shm`, or shm_size of a "
        "container, as compose.yaml has it",
    )


def gpus(config: Config | None) -> Finding:
    named = sorted({*config.engines.gpus, *config.trainer.gpus}) if config else []
    fix = "install the driver of NVIDIA, or correct engines.gpus and trainer.gpus"
    if shutil.which("nvidia-smi") is None:
        return not named, f"no nvidia-smi; the run wants GPUs {named}" if named else "none; nothing wants one", fix
    question = ["nvidia-smi", "--query-gpu=index,name,driver_version", "--format=csv,noheader"]
    answer = subprocess.run(question, capture_output=True, text=True, timeout=ASK_S)
    if answer.returncode:
        return not named, f"nvidia-smi fails: {(answer.stdout or answer.stderr).strip()}", fix
    lines = answer.stdout.strip().splitlines()
    missing = [gpu for gpu in named if gpu >= len(lines)]
    found = "; ".join(lines) or "no GPU"
    return not missing, f"{found}; the run wants also {missing}" if missing else found, fix


def torch_gpus(config: Config) -> Finding:
    """A PyTorch without CUDA, or for a newer driver, sees none, whatever nvidia-smi says."""
    question = "import torch; print(torch.cuda.device_count(), torch.version.cuda or 'none')"
    answer = subprocess.run([*programs.PYTHON, "-P", "-c", question], capture_output=True, text=True, timeout=IMPORT_S)
    fix = "`pip install torch` of a CUDA build that this driver knows, or a newer driver of NVIDIA"
    if answer.returncode:
        return False, (answer.stderr.strip().splitlines() or ["no torch"])[-1], f"pip install 'headrace[train]'; {fix}"
    count, _, cuda = answer.stdout.strip().rpartition(" ")
    found = f"PyTorch sees {count} GPUs, {'a build without CUDA' if cuda == 'none' else f'CUDA {cuda}'}"
    enough = int(count) > max(config.trainer.gpus)
    return enough, found if enough else f"{found}; trainer.gpus = {config.trainer.gpus}", fix


def settings_ports(config: Config) -> Finding:
    """Ports that the run's file names, and that something else has."""
    engines = range(config.engines.port, config.engines.port + config.engines.count) if config.engines.port else ()
    named = [port for port in (config.redis.port, config.metrics.port, *engines) if port]
    if holder_of(config.folder) is not None:
        return True, "the run is up, and has its own", ""
    taken = [port for port in named if not ports.is_free(port)]
    found = f"in use: {taken}" if taken else f"free: {named}" if named else "free ones are taken"
    return not taken, found, "end what listens there, choose others, or 0 for free ones"


def compose() -> Finding:
    """Only containers need it, so none is no fault."""
    if shutil.which("docker") is None:
        return True, "no docker; `headrace up` needs none", ""
    answer = subprocess.run(["docker", "compose", "version", "--short"], capture_output=True, text=True, timeout=ASK_S)
    version = re.match(r"v?(\d+)\.(\d+)", answer.stdout)
    if answer.returncode or version is None:
        return True, "docker without Compose; `headrace up` needs none", ""
    wanted = ".".join(map(str, COMPOSE))
    new = tuple(map(int, version.groups())) >= COMPOSE
    return new, f"Docker Compose {answer.stdout.strip()}", f"compose.yaml needs {wanted} or newer: update it"
