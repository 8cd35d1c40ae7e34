"""Published weights are sent to engines that ask for them, by a process of its own beside rank 0, on its GPU or CPU.

    take ─▶ begin ─▶ a group: rank 0 here, 1 … tp in the engine ─▶ each bucket: announce, broadcast ─▶ end ─▶ done
                     safetensors, mapped: trainer/buckets.py ─▶ ┘

What is sent is read from the folder that was published, so that no update waits for an engine and no memory is kept.
A bucket is many tensors in one broadcast; until the last one has come, the engine's label is that of no version. With
publish.delta only the tensors are sent that differ from those of the version which the engine serves.
An engine that waits for a tensor is freed only by connections that close. So whatever goes wrong ends this process,
and rank 0 starts another one; a group lives for one transfer, and neither side has anything to repair.
"""

import argparse
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import redis
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _new_process_group_helper, _world

from pipeline import die_with_parent, program, programs, transfer
from pipeline.config import Config
from pipeline.config_file import load
from pipeline.engines import Engine, EngineFailed
from pipeline.redis_client import connect
from pipeline.transfer import Transfer
from pipeline.weights import Label
from trainer.buckets import buckets, tensors_of
from trainer.ranks import Ranks

PAUSE_S = 1.0  # while Redis is away, and until one that has ended is started again
END_S = 5.0  # from SIGTERM to SIGKILL

log = logging.getLogger(__name__)


@contextlib.contextmanager
def broadcasting(config: Config, redis_url: str, ranks: Ranks) -> Iterator[None]:
    """Send what engines ask for while this lasts, if publish.transport says so; rank 0's process does."""
    if config.publish.transport == "disk" or not ranks.first:
        yield
        return
    guard = [sys.executable, "-S", "-E", die_with_parent.__file__, str(os.getpid())]
    command = [*guard, *programs.PYTHON, "-m", "trainer.broadcast", str(programs.run_toml(config)), str(ranks.device)]
    variables = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    stop = threading.Event()

    def keep() -> None:
        while not stop.is_set():
            process = subprocess.Popen(command, env=variables | {"REDIS_URL": redis_url})
            while process.poll() is None and not stop.wait(PAUSE_S):
                pass
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    keeper = threading.Thread(target=keep)  # the kernel ends the process with the thread that has started it
    keeper.start()
    try:
        yield
    finally:
        stop.set()
        keeper.join()


def main() -> None:
    parser = argparse.ArgumentParser(prog="trainer.broadcast", description="Send weights to engines that ask for them.")
    parser.add_argument("run", type=Path, help="the run's TOML file")
    parser.add_argument("device", type=torch.device)
    arguments = parser.parse_args()
    program.run(lambda: _listen(load(arguments.run), arguments.device))


def _listen(config: Config, device: torch.device) -> None:
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())  # torch wants one, whatever it is for
    with connect(os.environ["REDIS_URL"]) as client:
        while True:
            try:
                asked = transfer.take(client, config.run.name)
            except redis.RedisError:
                time.sleep(PAUSE_S)
                continue
            if asked is not None:
                _serve(client, config, asked, device)


def _serve(client: redis.Redis, config: Config, asked: Transfer, device: torch.device) -> None:
    def answer(text: str) -> None:
        with contextlib.suppress(redis.RedisError):  # the coordinator does not wait for ever
            transfer.answer(client, config.run.name, asked, text)

    def fail(said: str) -> None:
        log.warning("%s was not sent: %s", asked.path, said, extra={"engine": asked.url})
        answer(said)
        os._exit(1)

    limit = threading.Timer(asked.timeout_s, fail, [f"it was not done within {asked.timeout_s:g} s"])
    limit.daemon = True  # the end of this process does not wait for it
    limit.start()
    try:
        send(asked, config.folder, device, config.publish.bucket_mb << 20, config.publish.delta)
    except Exception as error:
        fail(f"{type(error).__name__}: {error}")
    limit.cancel()
    answer(transfer.DONE)


def send(asked: Transfer, folder: Path, device: torch.device, bytes_: int, delta: bool = False) -> None:
    """Have the engine, which must stand still, serve the weights as `asked.label`.

    bytes_  of a bucket, which is held on `device` and in the engine; a tensor that has more is sent alone
    delta   leave out what the engine has already, as its label says
    Whatever it raises: nobody knows what the engine serves, and it may wait until this process has ended.
    """
    engine = Engine(asked.url)

    def tell(path: str, **request) -> None:
        reply = engine.call("POST", path, request, asked.timeout_s)
        if reply.get("success") is not True:
            raise EngineFailed("REFUSED", f"{asked.url}{path}: {reply.get('message', reply)!s:.500}")

    known = tensors_of(folder, Label.parse(engine.label())) if delta else {}
    found = buckets(folder / asked.path, bytes_, known)
    try:
        tell("/begin_weight_update")
    except EngineFailed as error:
        if "already open" not in str(error):
            raise
        tell("/end_weight_update")  # of a transfer that was cut off
        tell("/begin_weight_update")
    group, name = _join(tell, engine, device, timedelta(seconds=asked.timeout_s))
    pool = ThreadPoolExecutor(1)
    for number, bucket in enumerate(found, 1):
        last = number == len(found)
        told = {"weight_version": asked.label if last else f"{asked.label}:part", "flush_cache": last}
        request = {**bucket.described(), "group_name": name, "load_format": "flattened_bucket", **told}
        received = pool.submit(tell, "/update_weights_from_distributed", **request)
        dist.broadcast(bucket.mapped().to(device), src=0, group=group)
        received.result()
    pool.shutdown()
    tell("/destroy_weights_update_group", group_name=name)
    dist.destroy_process_group(group)
    tell("/end_weight_update")


def _join(
    tell: Callable[..., None], engine: Engine, device: torch.device, limit: timedelta
) -> tuple[dist.ProcessGroup, str]:
    """A group of this process, rank 0, and the engine's; and its name. torch's own API makes none beside the default
    group's ranks; this is how SGLang makes its side of it. The names with _ are torch's own: before its pin is raised,
    see how its `new_group` calls the helper, and what it then writes into _world."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    size = 1 + ranks_of(engine)
    name, here = f"weights-{uuid.uuid4().hex}", _address_towards(engine.url)
    store = dist.TCPStore(here, 0, size, is_master=True, timeout=limit, wait_for_workers=False)
    request = {"master_address": here, "master_port": store.port, "rank_offset": 1, "world_size": size}
    prefix = dist.PrefixStore(name, store)
    pool = ThreadPoolExecutor(2)
    joined = pool.submit(tell, "/init_weights_update_group", **request, group_name=name, backend=backend)
    made = pool.submit(_new_process_group_helper, size, 0, [], dist.Backend(backend), prefix, name, timeout=limit)
    wait([joined, made], return_when=FIRST_EXCEPTION)  # one that refuses will not come, however long the other waits
    for side in (joined, made):
        if side.done():
            side.result()
    pool.shutdown()
    group, _ = made.result()
    _world.pg_group_ranks[group] = {rank: rank for rank in range(size)}
    return group, name


def ranks_of(engine: Engine) -> int:
    """How many processes the engine's weights are spread over."""
    size = engine.call("GET", "/server_info").get("tp_size")
    if not isinstance(size, int):
        raise EngineFailed("REPLY", f"{engine.url}/server_info: expected tp_size, found {size!r:.80}: is it SGLang?")
    return size


def _address_towards(url: str) -> str:
    """This host's address on the way to the engine's; nothing is sent."""
    target = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((target.hostname, target.port))
        return probe.getsockname()[0]


if __name__ == "__main__":
    main()
