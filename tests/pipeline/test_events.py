"""The bell wakes whoever waits, and the archive is the whole record."""

import json
import re
import threading
import time
from importlib.resources import files

import redis

from pipeline import events, keys


def test_waiting_ends_with_the_first_event_or_with_the_time(new_run):
    d = new_run()
    last = d.c.last_event()
    started = time.monotonic()
    assert d.c.wait(last, 0.2) == []
    assert 0.1 < time.monotonic() - started < 2
    later = threading.Timer(0.1, d.reserve)
    later.start()
    found = d.c.wait(last, 20)
    later.join()
    assert [e.kind for e in found] == ["reserved"]
    assert found[0].fields["worker"] == "w0-a"
    assert d.c.wait(last, 0)[0] == found[0]


def test_waiting_is_safe_with_a_short_socket_timeout(redis_url, run):
    with redis.Redis.from_url(redis_url, socket_timeout=0.5) as client:
        assert events.wait(client, run, "0", 0.7) == []


def test_every_transition_is_an_event(new_run, names):
    d = new_run(batch_size=1, max_staleness=0)
    d.c.release(d.reserve().entry, "failed")
    d.update()
    d.c.checkpoint(names.trainer, 1)
    d.c.pause("for lunch")
    d.c.resume()
    d.c.remove_engine(names.engine)
    kinds = [e.kind for e in d.c.wait("0", 0)]
    once = "created prompts engine joined reserved released reserved placed consumed published engine checkpoint"
    assert kinds == [*once.split(), "paused", "resumed", "engine"]


def test_the_archive_holds_every_event_once_whatever_was_trimmed(new_run, tmp_path):
    d = new_run(batch_size=1, max_staleness=0)
    path = tmp_path / "events.jsonl"
    all_ids = [e.id for e in d.c.wait("0", 0)]
    for _ in range(3):
        last = d.c.last_event()
        d.update()
        all_ids += [e.id for e in d.c.wait(last, 0)]
        events.archive(d.client, d.run, path, keep=3)
        assert d.client.xlen(keys.events(d.run)) == 3
    assert events.archive(d.client, d.run, path, keep=3) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["id"] for line in lines] == all_ids
    assert lines[0]["kind"] == "created"


def test_a_line_torn_by_a_crash_is_written_again(new_run, tmp_path):
    d = new_run()
    path = tmp_path / "events.jsonl"
    events.archive(d.client, d.run, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert events.archive(d.client, d.run, path) == 1
    assert path.read_bytes() == whole


def test_every_kind_of_event_is_described_with_its_fields():
    described = re.findall(
        r"^    (\w+) +(\w+(?: \w+)*)", events.__doc__.partition("fields of its kind:")[2], re.MULTILINE
    )
    scripts = "".join(path.read_text() for path in files("pipeline").joinpath("lua").glob("*.lua"))
    calls = re.findall(r"record\('(\w+)'(.*?)\)(?: end)?$", scripts, re.MULTILINE | re.DOTALL)
    recorded = {kind: re.findall(r"'(\w+)'", rest) for kind, rest in calls}
    elsewhere = {"created", "surplus", "filtered"}  # create.lua has no `record` yet, Occupy's kind is a variable
    assert {kind: fields.split() for kind, fields in described if kind not in elsewhere} == recorded
    assert elsewhere < dict(described).keys()
