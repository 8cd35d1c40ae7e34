"""What a trial says to a stack of docker compose, and asks of it."""

import json
import os
import secrets
import shlex
import signal
import subprocess
import tomllib
from pathlib import Path

from tests.waiting import wait_for

ROOT = Path(__file__).parent.parent.parent
SECRETS = [f"REDIS_{role}_PASSWORD" for role in ("WORKER", "TRAINER", "COORDINATOR", "VIEWER")] + ["HEADRACE_API_KEY"]

LOOK_S = 0.5  # a look takes a tenth of a second of one core, which the run needs


class Stack:
    """The stack of compose.yaml with its profile cpu, and the run `toml` of this repository's own recipes."""

    def __init__(self, environment: dict[str, str], folder: Path, toml: Path, workers: int):
        self.run = tomllib.loads(toml.read_text())["run"]["name"]
        self.environment = environment | {
            "COMPOSE_FILE": f"{ROOT / 'compose.yaml'}:{ROOT / 'tests' / 'stack' / 'engine.yaml'}",
            "COMPOSE_PROFILES": "cpu",
            "HEADRACE_FOLDER": str(folder),
            "HEADRACE_RUN": toml.name,
            "HEADRACE_WORKERS": str(workers),
            "HEADRACE_TRAINER_MEMORY": "8g",
            "HEADRACE_SGLANG_MEMORY": "8g",
        }
        self.environment |= {name: secrets.token_hex(16) for name in SECRETS}

    def __call__(self, *arguments: str, timeout_s: float = 120) -> str:
        """What a `docker …` prints."""
        done = subprocess.run(
            ["docker", *arguments], env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s
        )
        assert done.returncode == 0, f"docker {shlex.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    def compose(self, *arguments: str, timeout_s: float = 120) -> str:
        return self("compose", *arguments, timeout_s=timeout_s)

    def headrace(self, *command: str) -> str:
        """A command of headrace in the coordinator's container."""
        return self.compose("exec", "-T", "coordinator", "headrace", *command)

    def version(self) -> int:
        return self._number("version")

    def reservations(self) -> int:
        return self._number("reservations")

    def _number(self, field: str) -> int:
        """Of hr:{run}, as a viewer sees it."""
        look = ("redis-cli", "--user", "viewer", "HGET", f"hr:{{{self.run}}}", field)
        return int(self.compose("exec", "-T", "redis", *look))

    def restore(self, backup: Path) -> None:
        done = subprocess.run(
            ["make", "restore", f"FILE={backup}"],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"make restore: {done.stdout[-2000:]}{done.stderr[-4000:]}"

    def rewards(self) -> list[float]:
        lines = self.compose("exec", "-T", "coordinator", "cat", f"/runs/{self.run}/metrics.jsonl").splitlines()
        return [json.loads(line)["reward"] for line in lines]

    def containers(self, service: str) -> list[str]:
        return self.compose("ps", "--quiet", service).split()

    def kill(self, service: str) -> None:
        """SIGKILL to the process of one container of `service`, which then ends."""
        container = self.containers(service)[-1]
        init = self("inspect", "--format", "{{.State.Pid}}", container).strip()
        process = Path(f"/proc/{init}/task/{init}/children").read_text().split()[0]
        os.kill(int(process), signal.SIGKILL)

    def started(self, container: str) -> str:
        return self("inspect", "--format", "{{.State.StartedAt}}", container).strip()

    def wait_until_healthy(self, services: dict[str, int], seconds: float) -> None:
        """services: how many containers each must have."""

        def healthy() -> bool:
            rows = [json.loads(line) for line in self.compose("ps", "--format", "json").splitlines()]
            well = [row["Service"] for row in rows if row["Health"] == "healthy"]
            return all(well.count(service) >= count for service, count in services.items())

        wait_for(healthy, seconds, every=LOOK_S)

    def image(self, service: str) -> str:
        return json.loads(self.compose("config", "--format", "json"))["services"][service]["image"]

    def image_mb(self, image: str) -> int:
        return int(self("image", "inspect", "--format", "{{.Size}}", image)) // 1_000_000
