"""Ranks on two nodes, each with a torchrun of its own, here on one machine."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from pipeline import ports
from pipeline.config_file import load
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import recorded
from tests.waiting import wait_for


def rank_of(agent: subprocess.Popen) -> int | None:
    """The process that this node's torchrun has started."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    return int(children[0]) if children else None


def test_a_rank_that_dies_takes_all_nodes_back_to_the_newest_checkpoint(client, redis_url, run, tmp_path):
    config = make_run(tmp_path, run, ranks=2, total_steps=6, checkpoint_every=2)
    path = config.folder / "run.toml"
    meeting = f'ranks = 2\nnodes = 2\nrendezvous = "127.0.0.1:{ports.free()[0]}"\nmax_restarts = 2'
    path.write_text(path.read_text().replace("ranks = 2", meeting))
    assert load(path).digest == config.digest, "how many nodes there are may change within a run"
    command = [sys.executable, "-m", "pipeline.cli", "train", str(path), "--redis", redis_url]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PET_LOCAL_ADDR": "127.0.0.1"}
    with Producer(client, config) as producer, contextlib.ExitStack() as stack:
        agents = []
        for node in range(2):
            log = stack.enter_context((tmp_path / f"node-{node}.log").open("wb"))
            agents.append(subprocess.Popen(command, env=environment, stderr=log))
            stack.callback(agents[-1].kill)
        wait_for(lambda: (producer.ledger.status()["checkpoint"] or 0) >= 2, 200)
        os.kill(rank_of(agents[1]), signal.SIGKILL)
        assert [agent.wait(200) for agent in agents] == [0, 0], (tmp_path / "node-0.log").read_text()[-3000:]
    assert [line["version"] for line in recorded(config)] == list(range(6))
    assert sorted(producer.ledger.versions()) == list(range(7))
