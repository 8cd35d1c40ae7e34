"""The picture of a real ledger at two sizes, and what it says of everything that can be wrong."""

import io

import pytest
from rich.console import Console

from pipeline import evals
from pipeline.picture import chart, render
from pipeline.progress import Progress, record_metrics
from pipeline.snapshot import Snapshots


@pytest.fixture
def snapshot(new_run, client, run):
    """After one update: buffer 1 half full, two entries in flight, one engine that failed, a worker and a trainer."""
    driver = new_run(batch_size=4, max_staleness=2)
    driver.update()
    for outcome in (1.0, 0.0):
        driver.finish(driver.reserve(), outcome)
    driver.reserve()
    driver.reserve()
    driver.c.mark_engine("e1", "failed", "no answer to /model_info", "http://127.0.0.1:1")
    Progress(client, run, "worker-0", "worker").working(in_flight=2, tokens_s=120, failures=1)
    Progress(client, run, "trainer", "trainer").waiting("buffer 1: 2 of 4 occupied, 2 in flight")
    line = {"version": 0, "reward": 0.75, "staleness": {"0": 1, "1": 3}, "tokens_per_second": 800.0, "seconds": 2.0}
    record_metrics(client, run, line | {"step_seconds": 1.5, "wait_seconds": {"ready": 0.5, "publish": 0.0}})
    evals.request(client, run, 1)
    return Snapshots(client, run, total_steps=10).read()


def text(snapshot, width, height, **said):
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
    console.print(render(snapshot, height, width, **said))
    return console.file.getvalue()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (200, 60)])
def test_the_picture_fills_its_screen_and_no_more(snapshot, width, height):
    lines = text(snapshot, width, height).splitlines()
    assert len(lines) < height and max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "height"), [(20, 5), (140, 2), (140, 10), (300, 8)])
def test_a_screen_that_is_too_small_is_cut_and_no_error(snapshot, width, height):
    assert "headrace" in text(snapshot, width, height)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40)])
def test_the_picture_says_who_does_what_and_what_is_waited_for(snapshot, width, height):
    shown = text(snapshot, width, height)
    for expected in (
        "version 1 of 10",
        "buffer 1: 2 of 4 occupied, 2 in flight; most urgent: prompt",
        "0.750 mean of 5",
        "0: 25%  1: 75%",
        "update 75%  ready 25%",
        "2 + 0 of 4",
        "1 of 2 ready",
        "failed  0 entries in flight  no answer to /model_info",
        "ready  2 entries in flight",
        "2 episodes in flight, 120 tokens/s, 1 failures so far",
        "waits for buffer 1: 2 of 4 occupied, 2 in flight",
        "v1 requested",
    ):
        assert expected in shown, expected


@pytest.mark.parametrize("client", ["redis"], indirect=True)
def test_a_viewer_sees_the_same_picture(snapshot, redis_users, run):
    seen = Snapshots(redis_users["viewer"], run, total_steps=10).read()
    assert (seen.buffers, seen.load, seen.metrics) == (snapshot.buffers, snapshot.load, snapshot.metrics)


def test_a_larger_screen_has_the_reward_as_a_chart_and_the_newest_events(snapshot):
    large = text(snapshot, 140, 40)
    assert "reserved" in large and "│" in large
    assert "│" not in text(snapshot, 80, 24)


def test_a_picture_that_is_no_longer_true_says_so_where_the_wait_stood(snapshot):
    shown = text(snapshot, 80, 24, said="Redis does not answer as it should for 3 s")
    assert "Redis does not answer as it should for 3 s" in shown and "most urgent" not in shown


def test_a_run_at_rest_shows_nobody_at_work(snapshot):
    snapshot.rest()
    shown = text(snapshot, 80, 24, said="nothing runs", alarm=False)
    assert "engines" not in shown and "worker-0" not in shown and "2 + 0 of 4" in shown


def test_an_update_that_was_made_again_is_shown_once(new_run, client, run):
    new_run()
    snapshots = Snapshots(client, run, total_steps=10)
    for version in (0, 1, 2):
        record_metrics(client, run, {"version": version, "reward": 0.1})
    assert len(snapshots.read().metrics) == 3
    for version in (1, 2):  # a trainer came back from a checkpoint
        record_metrics(client, run, {"version": version, "reward": 0.9})
    assert [(m["version"], m["reward"]) for m in snapshots.read().metrics] == [(0, 0.1), (1, 0.9), (2, 0.9)]


def test_a_chart_keeps_its_scale_and_shows_the_newest():
    assert [line.plain[8:] for line in chart([0.0, 0.5, 1.0], 10, 4)] == ["  █", "  █", " ██", " ██"]
    lines = chart([9.0] * 5 + [3.0], 2, 4)
    assert lines[0].plain.startswith("     9 │█") and lines[-1].plain.startswith("     0 │")
