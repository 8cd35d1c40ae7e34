"""Does the ledger hold what the model holds? And are two answers, or two contents, the same?"""

from dataclasses import replace

from pipeline.ledger_types import Reservation


def agree(found, model):
    """The ledger holds what the model holds, and no key besides."""
    run, rules = found.run, model.rules
    names = (
        "version",
        "head",
        "event",
        "oldest",
        "checkpoint",
        "credited",
        "consecutive_failures",
        "consecutive_filtered",
    )
    numbers = (model.version, model.head, model.event, model.oldest, model.checkpointed, model.credited)
    numbers += (model.failures, model.filtered)
    assert [int(run[name]) for name in names] == list(numbers), names
    assert (run["trainer"], run["paused"] != "", run["stopped"] != "") == (model.trainer, model.paused, model.stopped)

    window = model.window()
    assert found.reserved() == {e.name: e.deadline for e in model.running()}
    assert list(found.reserved()) == [e.name for e in model.running()]
    for b in range(model.oldest, window.stop):
        assert found.members(b) == [e.name for e in model.members(b)], f"buffer {b}"
    states = {name: entry["state"] for name, entry in found.of("entry").items()}
    assert states == {e.name: e.state for e in model.entries.values()}

    view, due = model.slot_view(), model.deadlines()
    ready = "READY_WITH_CAPACITY" if rules.buffer_capacity > rules.batch_size else "READY"
    for b in window:
        shown, (reserved, over) = found.of("buffer").get(str(b), {}), view[b]
        state = ready if model.ready(b) else "PENDING" if reserved < model.open(b) else "STUCK"
        expected = {"occupied": len(model.members(b)), "due": due.count(b), "reserved": reserved, "over": over}
        assert {name: int(shown.get(name, 0)) for name in expected} == expected, f"buffer {b}"
        assert shown.get("state", "PENDING") == state, f"buffer {b}"
    pending = any(reserved < model.open(b) for b, (reserved, _) in view.items())
    assert pending == (len(window) > 0 and model.admits(window[-1])), "PENDING is the same as admitted"

    assert found.zset("prompts").keys() == set(model.idle())
    for name, prompt in found.of("prompt").items():
        expected, counts = model.prompts[name], [int(prompt[n]) for n in ("attempts", "lost", "visits")]
        assert counts == [expected.attempts, expected.lost, expected.visits], name
        assert abs(float(prompt["value"]) - model.value(name)) < 1e-9, name

    assert found.zset("workers") == model.leases
    alive = model.leases.keys() | {e.worker for b in range(model.oldest, window.stop) for e in model.members(b)}
    assert {name.partition(":")[0] for kind, name in found.hashes if kind == "worker"} <= alive, "a dead worker's keys"
    assert {name for name, h in found.of("worker").items() if h.get("drain")} == model.drained
    assert all(model.oldest <= int(b) < window.stop for b in found.of("buffer")), "a buffer outside of what is kept"


def same(answer, expected):
    if isinstance(answer, Reservation) and isinstance(expected, Reservation):
        return abs(answer.value - expected.value) < 1e-9 and replace(answer, value=0) == replace(expected, value=0)
    return answer == expected


def written(contents, apart=()):
    """Without what says nothing: how far the ids of a stream have come."""
    kept = {}
    for key, value in contents.items():
        if isinstance(value, dict):
            value = {k: v for k, v in value.items() if k != b"last_id"}
        if value and key.decode() not in apart:
            kept[key] = value
    return kept
