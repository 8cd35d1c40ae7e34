"""What the live display shows: the same picture at 80×24, however much there is to show."""

import io
import time

import pytest
from rich.console import Console

from pipeline.display import Display, plain
from pipeline.evals import Evaluation
from pipeline.ledger_types import BufferView
from pipeline.picture import histogram, render, sparkline
from pipeline.progress import Progress, record_metrics
from pipeline.snapshot import Snapshot, Snapshots


def snapshot(processes=6, updates=200) -> Snapshot:
    now = time.time_ns() // 1_000_000
    metrics = [
        {"version": v, "reward": 0.2 + v / 400, "staleness": {"0": 4, "1": 12, "2": 48}, "tokens_per_second": 5123.4}
        for v in range(updates)
    ]
    rows = [
        {
            "name": "coordinator",
            "role": "coordinator",
            "waiting": "1 of 1 engines ready; the next version",
            "since_ms": now,
        },
        {
            "name": "trainer",
            "role": "trainer",
            "waiting": "buffer 200: 40 of 64 occupied, 24 in flight",
            "since_ms": now - 7000,
        },
    ]
    rows += [
        {"name": f"worker-{n}", "role": "worker", "waiting": "", "since_ms": now, "tokens_s": 500.0, "episodes": 3 * n}
        for n in range(processes - 2)
    ]
    buffers = [
        BufferView(200, "PENDING", 40, 24, 24, 0, 64, 64, 198),
        BufferView(201, "PENDING", 0, 10, 10, 0, 64, 64, None),
        BufferView(202, "STUCK", 0, 64, 64, 0, 64, 64, None),
    ]
    evaluations = [Evaluation(v, "done", success=0.3 + v / 1000) for v in range(0, 200, 15)]
    evaluations.append(Evaluation(200, "running"))
    return Snapshot(
        "a-rather-long-name-of-a-run",
        1000,
        4000.0,
        {"version": 200, "waiting": ""},
        buffers,
        metrics,
        evaluations,
        rows,
    )


def screen(snapshot: Snapshot, width=80, height=24) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
    console.print(render(snapshot, height))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("processes", [2, 6, 40])
def test_the_picture_fits_80_by_24(processes):
    lines = screen(snapshot(processes))
    assert len(lines) <= 23, "one line is the cursor's"
    assert max(map(len, lines)) <= 80


def test_the_picture_says_where_the_run_is_and_what_everybody_waits_for():
    text = "\n".join(screen(snapshot()))
    assert "a-rather-long-name-of-a-run" in text
    assert "version 200 of 1000" in text
    assert "waits 7 s for buffer 200: 40 of 64 occupied, 24 in flight" in text
    assert "40 + 24 of 64" in text
    assert "0: 6%  1: 19%  2: 75%" in text
    assert "v195 0.49" in text
    assert "v200 running" in text
    assert "2,000 generated" in text


def test_many_processes_are_counted_where_they_do_not_fit():
    assert any("more" in line for line in screen(snapshot(40)))


def test_a_run_that_has_just_begun_can_be_drawn():
    status = {"version": 0, "waiting": "buffer 0: 0 of 64 occupied, no engine is ready"}
    empty = Snapshot("new", 60, 0.0, status, [], [], [], [])
    assert "none yet" in "\n".join(screen(empty))
    assert plain(empty) == "0:00 · update 0/60 · buffer 0: 0 of 64 occupied, no engine is ready"


def test_the_plain_line_holds_the_same_numbers():
    line = plain(snapshot())
    assert "1:06:40 · update 200/1000 · reward 0.69 · staleness 0: 6%  1: 19%  2: 75%" in line
    assert "held-out 0.49 at v195" in line
    assert "trainer waits for buffer 200: 40 of 64 occupied, 24 in flight" in line


def test_a_sparkline_keeps_its_scale():
    assert sparkline([0, 0.5, 1]) == "▁▅█"
    assert sparkline([0.1, 0.1]) == "▂▂"
    assert sparkline([-1, 3]) == "▁█"
    assert histogram({"2": 1, "10": 1}) == "2: 50%  10: 50%"


def test_everything_shown_is_read_from_redis(client, run, capsys):
    from pipeline.coordinator import Coordinator

    display = Display(Snapshots(client, run, total_steps=9), terminal=False)
    display.refresh(now=True)
    assert capsys.readouterr().out == "", "a ledger that is not there yet is no error"
    Coordinator.create(client, run, {"batch_size": 4, "digest": "abc"})
    Progress(client, run, "trainer", "trainer").waiting("buffer 0: 0 of 4 occupied")
    record_metrics(client, run, {"version": 0, "reward": 0.25, "staleness": {"0": 4}})
    display.refresh(now=True)
    out = capsys.readouterr().out
    assert "update 0/9 · reward 0.25 · staleness 0: 100%" in out
    assert "trainer waits for buffer 0: 0 of 4 occupied" in out
