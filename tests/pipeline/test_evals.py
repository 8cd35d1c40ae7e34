from concurrent.futures import ThreadPoolExecutor

from pipeline import evals

RESULT = {"success": 0.5, "stderr": 0.02, "trajectories": 512, "seconds": 3.5}


def test_an_evaluation_is_requested_claimed_and_finished(client, run):
    assert evals.claim(client, run, "worker-0") is None and evals.read(client, run, 10) is None
    evals.request(client, run, 10)
    assert evals.read(client, run, 10).state == "requested"
    assert evals.claim(client, run, "worker-0") == 10
    running = evals.read(client, run, 10)
    assert (running.state, running.worker, running.over) == ("running", "worker-0", False)
    assert evals.finish(client, run, 10, "worker-0", **RESULT)
    done = evals.read(client, run, 10)
    assert done.over and evals.as_line(done) == {"version": 10} | RESULT


def test_a_request_that_is_repeated_changes_nothing(client, run):
    evals.request(client, run, 10)
    first = evals.read(client, run, 10)
    evals.claim(client, run, "worker-0")
    evals.request(client, run, 10)
    assert evals.read(client, run, 10).requested_ms == first.requested_ms
    assert evals.read(client, run, 10).state == "running" and evals.claim(client, run, "worker-1") is None


def test_of_many_workers_exactly_one_claims(client, run):
    evals.request(client, run, 0)
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda i: evals.claim(client, run, f"worker-{i}"), range(16)))
    assert sorted(c for c in claims if c is not None) == [0]


def test_what_a_worker_that_left_gives_back_is_another_ones(client, run):
    evals.request(client, run, 0)
    evals.claim(client, run, "worker-0")
    assert evals.give_back(client, run, 0, "worker-0")
    assert evals.claim(client, run, "worker-1") == 0
    assert not evals.finish(client, run, 0, "worker-0", **RESULT)
    assert not evals.fail(client, run, 0, "worker-0", "late")
    assert evals.finish(client, run, 0, "worker-1", **RESULT)


def test_a_result_after_the_time_limit_is_refused(client, run):
    evals.request(client, run, 0)
    evals.claim(client, run, "worker-0")
    assert evals.fail(client, run, 0, "worker-0", "took longer than eval.timeout_s = 300")
    assert not evals.finish(client, run, 0, "worker-0", **RESULT)
    failed = evals.read(client, run, 0)
    assert failed.over and failed.success is None and "eval.timeout_s" in failed.error


def test_only_the_newest_request_is_worth_doing(client, run):
    evals.request(client, run, 9)
    evals.request(client, run, 10)
    assert evals.fail(client, run, 9, "", "nobody claimed it")
    assert evals.claim(client, run, "worker-0") == 10
    assert [(e.version, e.state) for e in evals.read_all(client, run)] == [(9, "failed"), (10, "running")]
