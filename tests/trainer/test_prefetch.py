"""The next batch is fetched and prepared meanwhile; only what Consume answers counts."""

import threading

import pytest
import redis

from pipeline.coordinator import Coordinator
from pipeline.errors import MissingBatch
from tests.fixtures_ledger import TRAINER, Driver
from tests.waiting import wait_for
from trainer.prefetch import Prefetch
from trainer.update import Prepared

BATCH = 4


class Watched(Coordinator):
    """Notes which refs were fetched by which thread."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.fetched = []

    def fetch(self, refs):
        self.fetched.append((threading.current_thread().name.partition("_")[0], tuple(refs)))
        return super().fetch(refs)


def prepare(trajectories):
    return Prepared(trajectories, None, None, [])


@pytest.fixture
def filled(client, run):
    """A ledger whose buffers 0 and 1 are READY."""
    driver = Driver(client, run, batch_size=BATCH, max_staleness=1)
    for r in driver.reserve_all():
        driver.finish(r)
    return driver


@pytest.fixture
def ledger(client, run):
    return Watched(client, run)


@pytest.fixture
def prefetch(ledger):
    with Prefetch(ledger, prepare) as prefetch:
        yield prefetch


def entries(batch):
    return [t.entry for t in batch.trajectories]


def in_order(driver, refs):
    """Of one version."""
    return sorted((ref.entry for ref in refs), key=lambda entry: driver.entry(entry)["prompt"])


def test_who_finished_first_has_no_part_in_the_order_of_a_batch(client, run):
    def prompts(name, turn):
        driver = Driver(client, name, batch_size=BATCH, max_staleness=0)
        for r in turn(driver.reserve_all()):
            driver.finish(r)
        with Prefetch(driver.c, prepare) as prefetch:
            return [t.prompt_id for t in prefetch.take(driver.c.consume(TRAINER, 0).refs).trajectories]

    found = prompts(f"{run}-forth", list)
    assert found == prompts(f"{run}-back", reversed) and len(set(found)) == BATCH


def test_what_was_peeked_and_is_consumed_is_fetched_once_in_a_thread(filled, ledger, prefetch):
    prefetch.look_for(0)
    wait_for(lambda: ledger.fetched)
    refs = ledger.consume(TRAINER, 0).refs
    assert entries(prefetch.take(refs)) == in_order(filled, refs)
    assert ledger.fetched == [("prefetch", refs)]


def test_a_peek_and_a_fetch_change_nothing_in_the_ledger(filled, ledger, prefetch):
    before = ledger.buffers(), ledger.fields(), ledger.last_event()
    prefetch.look_for(0)
    wait_for(lambda: ledger.fetched)
    refs = ledger.peek(0)
    prefetch.take(refs)
    assert (ledger.buffers(), ledger.fields(), ledger.last_event()) == before
    assert ledger.consume(TRAINER, 0).refs == refs


def test_of_another_batch_than_was_peeked_only_what_differs_is_fetched(filled, ledger, prefetch):
    peeked, others = ledger.peek(0), ledger.peek(1)
    prefetch.look_for(0)
    wait_for(lambda: ledger.fetched)
    consumed = (others[0], *reversed(peeked[1:]))
    taken = prefetch.take(consumed)
    assert entries(taken) == in_order(filled, consumed)
    assert ledger.fetched[1:] == [("MainThread", (others[0],))]


def test_a_buffer_that_is_not_ready_yet_is_found_once_it_is(client, run, ledger):
    driver = Driver(client, run, batch_size=BATCH)
    taken = driver.reserve_all()
    with Prefetch(ledger, prepare) as prefetch:
        prefetch.look_for(0)
        for r in taken:
            assert not ledger.fetched
            driver.finish(r)
        wait_for(lambda: ledger.fetched)
        prefetch.take(ledger.consume(TRAINER, 0).refs)
        assert [who for who, _ in ledger.fetched] == ["prefetch"]


def test_a_batch_that_nobody_looked_for_or_found_is_fetched_when_it_is_taken(filled, ledger, prefetch):
    refs = ledger.consume(TRAINER, 0).refs
    assert entries(prefetch.take(refs)) == in_order(filled, refs)
    prefetch.look_for(7)  # never READY
    assert entries(prefetch.take(refs)) == in_order(filled, refs)
    assert [who for who, _ in ledger.fetched] == ["MainThread"] * 2


def test_a_new_look_ends_the_one_before(filled, ledger, prefetch):
    prefetch.look_for(7)
    prefetch.look_for(1)
    wait_for(lambda: ledger.fetched)
    assert ledger.fetched == [("prefetch", ledger.peek(1))]


def test_what_goes_wrong_in_the_thread_goes_wrong_in_the_trainers_own_call_or_not_at_all(filled, ledger, prefetch):
    tried = threading.Event()
    fetch, failures = ledger.fetch, [redis.ConnectionError("away"), MissingBatch("gone"), redis.ConnectionError("away")]

    def fails(refs):
        tried.set()
        if failures:
            raise failures.pop(0)
        return fetch(refs)

    ledger.fetch = fails
    refs = ledger.peek(0)
    prefetch.look_for(0)
    assert tried.wait(30)
    with pytest.raises(MissingBatch):
        prefetch.take(refs)
    with pytest.raises(redis.ConnectionError):
        prefetch.take(refs)
    assert entries(prefetch.take(refs)) == in_order(filled, refs)


def test_a_defect_in_the_thread_is_not_hidden(filled, ledger):
    def broken(_):
        raise ZeroDivisionError

    with Prefetch(ledger, broken) as prefetch:
        prefetch.look_for(0)
        wait_for(lambda: ledger.fetched)
        with pytest.raises(ZeroDivisionError):
            prefetch.take(ledger.peek(0))


def test_leaving_it_ends_its_thread(filled, ledger):
    with Prefetch(ledger, prepare) as prefetch:
        prefetch.look_for(7)
    assert not [t for t in threading.enumerate() if t.name.startswith("prefetch")]
