"""What an update warns of is told by all that shows a run, and gone with the next update that does not."""

import io

import pytest
from rich.console import Console

from pipeline.alarms import alarms
from pipeline.display import plain
from pipeline.picture import render
from pipeline.progress import record_metrics
from pipeline.snapshot import Snapshots

GOOD = {"version": 6, "reward": 0.5, "skipped": 0, "mismatch_alarm": 0, "mismatch_kl": 1e-4, "mismatch_max": 0.1}
BAD = GOOD | {"version": 5, "skipped": 2, "mismatch_alarm": 1, "mismatch_kl": 0.31, "mismatch_max": 4.2}


def test_each_kind_is_a_sentence_with_its_numbers_and_where_to_look():
    disagree, skipped = alarms(BAD)
    assert "mismatch_kl 0.31 nats a token, at most 4.2" in disagree and "rollout.temperature" in disagree
    assert skipped.startswith("2 optimizer steps were skipped in update 5") and "log" in skipped
    assert alarms(BAD | {"mismatch_alarm": 0, "skipped": 1})[0].startswith("an optimizer step was skipped")
    assert alarms(GOOD) == alarms({}) == alarms({"version": 1, "reward": 0.5}) == []


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40)])
def test_the_live_picture_and_the_plain_line_tell_it_until_an_update_is_well(new_run, client, run, width, height):
    new_run(batch_size=4).update()

    def shown():
        snapshot = Snapshots(client, run, total_steps=10).read()
        console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
        console.print(render(snapshot, height, width))
        return console.file.getvalue(), plain(snapshot)

    record_metrics(client, run, BAD)
    picture, line = shown()
    for text in (picture, line):
        assert "trainer and engines disagree: mismatch_kl 0.31" in text and "2 optimizer steps were skipped" in text
    assert len(picture.splitlines()) < height
    record_metrics(client, run, GOOD)
    assert not [text for text in shown() if "disagree" in text or "skipped" in text]
