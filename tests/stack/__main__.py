"""The stack that people bring up, with a real Docker engine: `python -m tests.stack`, as root on Debian 12.

    apt-get install --no-install-recommends docker.io mmdebstrap      what it needs, beside the test extra

    engine ─▶ look-alikes of the official images ─▶ build ─▶ up with 3 workers ─▶ reward rises ─▶ scale to 5, back to 2
           ─▶ SIGKILL a worker, then Redis; the run goes on ─▶ `headrace audit` finds nothing ─▶ backup ─▶ down, Redis
           has kept all ─▶ volumes removed, restored ─▶ up again, from where the backup was ─▶ audit ─▶ down

It prints each step with its seconds, and the sizes of the images. A step that fails ends it with exit code 1; a machine
on which it cannot be tried, with 77.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.config_file import load, to_toml
from tests.stack.bases import make_python, make_redis
from tests.stack.engine import NotHere, engine
from tests.stack.stack import LOOK_S, ROOT, Stack
from tests.waiting import wait_for

SETTINGS = [
    "run.name=stack",
    "run.total_steps=1000",
    "data.size=64",
    "buffers.batch_size=32",
    "advantage.offline_rollouts=2",
    "eval.every=1000",
    "eval.n=1",
    "optimizer.lr=5e-4",
    "trainer.checkpoint_every=5",
]
BUILDS = [("trainer-cpu", "coordinator"), ("sglang-cpu",)]  # all that the coordinator's image has is in the trainer's
RISE_OVER = 8  # updates: the mean reward of the last so many against that of the first so many


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.stack", description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="wait for Enter before the stack is taken down")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-stack-") as folder:
        try:
            trial(Path(folder), arguments.keep)
        except NotHere as lack:
            print(f"the stack was NOT tried: {lack}", file=sys.stderr)
            sys.exit(77)


def trial(folder: Path, keep: bool) -> None:
    begun = last = time.monotonic()

    def done(step: str) -> None:
        nonlocal last
        print(f"{step:<66}{time.monotonic() - last:7.1f} s", flush=True)
        last = time.monotonic()

    run = folder / "run"
    run.mkdir()
    (run / "stack.toml").write_text(to_toml(load(ROOT / "pipeline" / "recipes" / "demo.toml", SETTINGS)))
    with engine(folder / "engine") as environment:
        done("Docker engine")
        make_python(environment)
        done("look-alike of python")
        stack = Stack(environment, run, run / "stack.toml", workers=3)
        with ThreadPoolExecutor() as pool:
            builds = [pool.submit(build, stack, *services) for services in BUILDS]
            for each in [pool.submit(make_redis, environment), *builds]:
                each.result()
        done("three images, and a look-alike of redis")
        base = stack.image_mb("python:3.11-slim-bookworm")
        for image in (stack.image(service) for services in BUILDS for service in services):
            print(f"    {image}: {stack.image_mb(image) - base} MB beyond its base")
        try:
            up(stack, done)
            wait_for(lambda: stack.version() >= 2 * RISE_OVER and rises(stack.rewards()), 300, every=LOOK_S)
            done(f"reward {mean(stack.rewards()[:RISE_OVER]):.2f} → {mean(stack.rewards()[-RISE_OVER:]):.2f}")
            scale(stack, done)
            kill(stack, done)
            audit(stack, done)
            restore(stack, folder / "stack.tar", done)
            audit(stack, done)
            if keep:
                input(f"DOCKER_HOST={environment['DOCKER_HOST']}; Enter takes the stack down")
        except BaseException:
            print(stack.compose("logs", "--tail", "30"), file=sys.stderr)
            raise
        finally:
            stack.compose("down", "--volumes", "--timeout", "30", timeout_s=300)
        done("down")
    print(f"{'in all':<66}{time.monotonic() - begun:7.1f} s")


def build(stack: Stack, *services: str) -> None:
    for service in services:
        stack.compose("build", service, timeout_s=900)


def up(stack: Stack, done) -> None:
    stack.compose("up", "--detach", timeout_s=600)
    done("up: cold start, SGLang, first values")
    stack.wait_until_healthy({"worker": 3, "coordinator": 1, "trainer-cpu": 1, "redis": 1, "sglang-cpu": 1}, 180)
    wait_for(lambda: stack.version() >= 1, 180, every=LOOK_S)
    done("3 workers, everything healthy, version 1")


def scale(stack: Stack, done) -> None:
    for count in (5, 2):
        command = [Path(sys.executable).with_name("headrace"), "workers", "scale", str(count)]
        subprocess.run(command, cwd=ROOT, env=stack.environment, check=True, capture_output=True, timeout=700)
        wait_for(lambda count=count: len(stack.containers("worker")) == count, 60, LOOK_S)
        stack.wait_until_healthy({"worker": count}, 120)
        done(f"headrace workers scale {count}")


def kill(stack: Stack, done) -> None:
    for service in ("worker", "redis"):
        before = stack.version()
        container = stack.containers(service)[-1]
        started = stack.started(container)
        stack.kill(service)
        wait_for(lambda c=container, s=started: stack.started(c) != s, 60, LOOK_S)
        stack.wait_until_healthy({service: 2 if service == "worker" else 1}, 120)
        wait_for(lambda v=before: went_on(stack, v), 180, LOOK_S)
        done(f"SIGKILL {service}: healthy again, and two versions further")


def audit(stack: Stack, done) -> None:
    print(found := stack.headrace("audit", f"/runs/{stack.run}"))
    assert "after 0-0" not in found, "Redis came back without what it had"
    done("audit")


def restore(stack: Stack, file: Path, done) -> None:
    """As README says it."""
    backup = json.loads(stack.headrace("backup", f"/runs/{stack.run}", "-o", "/runs/stack.tar", "--json"))
    stack.compose("cp", "coordinator:/runs/stack.tar", str(file))
    done(f"backup of version {backup['version']}, checkpoint {backup['checkpoint']}, {backup['MB']} MB")
    stack.compose("down", "--timeout", "60", timeout_s=300)
    stack.compose("up", "--detach", "--wait", "redis")
    assert stack.version() >= backup["version"], "the volumes did not stay"
    stack.compose("down", "--volumes")
    done("down, Redis alone has kept what it had, volumes removed")
    stack.restore(file)
    stack.compose("up", "--detach", "--wait", "redis")
    assert stack.version() == backup["version"]
    done(f"make restore: version {backup['version']} is there")
    before = stack.reservations()
    stack.compose("up", "--detach", timeout_s=300)
    wait_for(lambda: stack.reservations() > before, 180, LOOK_S)
    done("up again, with the model in place: the first reservation")
    wait_for(lambda: stack.version() >= backup["version"] + 2, 180, LOOK_S)
    done("two versions further than the backup")


def went_on(stack: Stack, version: int) -> bool:
    try:
        return stack.version() >= version + 2
    except AssertionError:  # Redis is not there yet
        return False


def rises(rewards: list[float]) -> bool:
    return len(rewards) >= 2 * RISE_OVER and mean(rewards[-RISE_OVER:]) > mean(rewards[:RISE_OVER]) + 0.05


def mean(numbers) -> float:
    return statistics.fmean(numbers)


if __name__ == "__main__":
    main()
