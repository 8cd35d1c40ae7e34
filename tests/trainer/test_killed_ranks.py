"""kill -9 at any moment, then the same or another number of ranks: no trajectory is lost, repeated or skipped."""

import filecmp
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline import events
from pipeline.audit import audit
from pipeline.redis_client import connect
from tests.trainer.forked import ended, kill_at, started
from tests.trainer.ledger import Producer, make_run
from tests.trainer.runs import comparable, last_file, recorded

SETTINGS = {"total_steps": 5, "checkpoint_every": 1, "evidence": "receipt"}


@pytest.fixture(scope="module")
def undisturbed(redis_url, tmp_path_factory):
    """Metrics and the file of the final weights with two ranks."""
    with connect(redis_url) as client:
        config = make_run(tmp_path_factory.mktemp("runs"), "undisturbed", ranks=2, **SETTINGS)
        with Producer(client, config), started(config, redis_url) as ranks:
            assert [code for _, code in ended(ranks)] == [0, 0]
        return trained(config), last_file(config)


def trained(config):
    """What was trained, and not which prompts it was for: they are drawn, by whoever is refused too."""
    of_prompts = ("drift", "retention")
    return [{k: v for k, v in line.items() if k not in of_prompts} for line in comparable(recorded(config))]


def with_ranks(config, ranks):
    path = config.folder / "run.toml"
    path.write_text(path.read_text().replace(f"ranks = {config.trainer.ranks}\n", f"ranks = {ranks}\n"))
    return config.model_copy(update={"trainer": config.trainer.model_copy(update={"ranks": ranks})})


def distance(ours: Path, theirs: Path) -> float:
    """‖w - w'‖ / ‖w'‖ over all tensors."""
    files = (load_file(path) for path in (ours, theirs))
    ours, theirs = (torch.cat([t.double().flatten() for _, t in sorted(tensors.items())]) for tensors in files)
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize(
    "moment, before, after",
    [
        ("stage", 2, 2),
        ("write", 2, 1),
        ("rename", 1, 2),
        ("named", 2, 2),
        ("publish", 2, 1),
        ("credit", 1, 2),
    ],
)
def test_killed_at_any_moment_a_run_goes_on_with_any_number_of_ranks(
    client, redis_url, run, tmp_path, undisturbed, moment, before, after
):
    config = make_run(tmp_path, run, ranks=before, **SETTINGS)
    with Producer(client, config) as producer:
        with started(config, redis_url, kill_at(moment, 3)) as ranks:
            ranks[0][0].join(100)
            assert ranks[0][0].exitcode == -9
        killed = producer.ledger.versions()
        config = with_ranks(config, after)
        with started(config, redis_url) as ranks:
            assert [code for _, code in ended(ranks)] == [0] * after
        published = producer.ledger.versions()
    assert {version: published[version] for version in killed} == killed, "a version was published twice"
    lines, last = trained(config), last_file(config)
    if before == after == 2:
        for line, expected in zip(lines, undisturbed[0], strict=True):
            assert line == expected
        assert filecmp.cmp(last, undisturbed[1], shallow=False)
    assert distance(last, undisturbed[1]) <= 1e-6
    assert [line["version"] for line in lines] == list(range(5))
    assert [line["reward"] for line in lines] == [line["reward"] for line in undisturbed[0]]
    events.archive(client, run, config.folder / "events.jsonl")
    findings = audit(config, redis_url)
    assert findings.clean and findings.checked["trained"] >= 5, "each update was made from its batch, once"
