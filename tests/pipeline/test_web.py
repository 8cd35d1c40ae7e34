"""The page of a run: what it tells and what it must not, to whom; and how it looks in a real browser at two widths."""

import asyncio
import http.client
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline import evals, web
from pipeline.config_file import load
from pipeline.errors import HeadraceError
from pipeline.onlooker import Sight
from pipeline.progress import Progress, record_metrics
from pipeline.run_folder import open_folder
from pipeline.snapshot import Snapshots
from tests.browser import MISSING, browser, chromium

ENGINE = f"http://me:{'hidden' * 12}@10.0.0.7:1"


@pytest.fixture
def snapshot(new_run, client, run):
    """Forty updates, two entries in flight, an engine whose URL has a password, one that failed, and evaluations."""
    driver = new_run(batch_size=4, max_staleness=2)
    driver.update()
    driver.finish(driver.reserve())
    driver.reserve()
    driver.reserve()
    reason = f"{ENGINE}/model_info: no answer to /model_info " + 8 * "and again "
    driver.c.mark_engine("e1", "failed", reason, ENGINE)
    Progress(client, run, "worker-0", "worker").working(in_flight=2, tokens_s=120)
    Progress(client, run, "trainer", "trainer").waiting("buffer 1: 1 of 4 occupied, 2 in flight")
    Progress(client, run, "worker-1", "worker").waiting(f"an engine (e1 failed: {ENGINE}: no answer)")
    driver.c.release(driver.reserve().entry, "failed", "the judge said 'a reply of the model'")
    for version in range(40):
        line = {"version": version, "reward": version / 40, "staleness": {"0": 1, "2": 3}, "mismatch_kl": 1e-4}
        line |= {"skipped": 2 if version == 39 else 0}
        line |= {"mean_length": 40 + version % 5, "brier": 0.2, "entropy": float("nan"), "tokens_per_second": 800.0}
        timed = {"seconds": 2.0, "step_seconds": 1.5, "wait_seconds": {"ready": 0.5, "publish": 0.0}}
        record_metrics(client, run, line | timed)
    evals.request(client, run, 0)
    evals.claim(client, run, "w")
    evals.finish(client, run, 0, "w", success=0.4, stderr=0.03, trajectories=8, seconds=1.0)
    evals.request(client, run, 20)
    evals.fail(client, run, 20, "", "no worker has claimed it")
    return Snapshots(client, run, total_steps=60).read()


@pytest.fixture
def serve(headrace):
    """serve(sight) -> the Server that shows it."""
    headrace("init", "shown", "--recipe", "demo")
    servers = []

    def start(sight, host="127.0.0.1"):
        server = web.Server(load("shown.toml"), SimpleNamespace(sight=sight), host)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(server, path="/state.json", method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_is_told_what_the_ledger_holds(snapshot, serve):
    found = json.loads(ask(serve(Sight(snapshot, "up", "")))[1])
    assert (found["state"], found["version"], found["total_steps"]) == ("up", 1, 60)
    views = [view for view in snapshot.buffers if view.state != "CONSUMED"]
    assert [(b["id"], b["occupied"], b["reserved"]) for b in found["buffers"]] == [
        (view.id, view.occupied, view.reserved) for view in views
    ]
    assert [(e["name"], e["state"], e["load"]) for e in found["engines"]] == [("e0", "ready", 2), ("e1", "failed", 0)]
    assert found["waiting"].startswith("buffer 1: 1 of 4 occupied, 2 in flight")
    assert [p["does"] for p in found["processes"]][1] == "2 episodes in flight, 120 tokens/s"
    assert found["counts"]["placed"] == 5 and found["time"] == {"update": 0.75, "ready": 0.25, "publish": 0.0}
    assert [(e["version"], e["state"], e["error"]) for e in found["evaluations"]][1] == (
        20,
        "failed",
        "no worker has claimed it",
    )
    assert [u["reward"] for u in found["updates"]] == [v / 40 for v in range(40)]
    assert found["alarms"] and "skipped in update 39" in found["alarms"][0]
    assert found["updates"][0]["entropy"] is None, "JSON has no NaN"


def test_no_prompt_and_no_password_leaves_the_page(snapshot, serve):
    body = ask(serve(Sight(snapshot, "up", "")))[1].decode()
    assert "question" not in body, "the payload of every prompt of this run"
    assert "hidden" not in body and body.count("http://me:***@10.0.0.7:1") >= 4, "url, reason, event, wait"
    assert "reason=failed" in body and "a reply of the model" not in body


def test_why_a_run_has_stopped_is_told_without_what_a_model_replied():
    said = "3 failures in a row; the last one: found 'a\nreply'; mend the cause, then `headrace up` goes on"
    assert web.outline(said) == "3 failures in a row; mend the cause, then `headrace up` goes on"
    assert web.outline("failed 3 times; the last one: 'a\nreply'") == "failed 3 times"
    assert web.outline("buffer 1: 1 of 4 occupied") == "buffer 1: 1 of 4 occupied"


def test_the_page_is_read_only_and_alone_with_its_server(snapshot, serve):
    server = serve(Sight(snapshot, "up", ""))
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        answer, _ = ask(server, "/", method)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert ask(server, "/../run.toml")[0].status == ask(server, "/metrics")[0].status == 404
    answer, page = ask(server, "/")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; connect-src 'self'")
    assert b"http://" not in page.replace(b"http://www.w3.org/2000/svg", b"") and b"https://" not in page
    assert ask(server, "/", "HEAD")[1] == b""


def test_a_name_that_only_pretends_to_be_this_machine_is_refused(snapshot, serve):
    server = serve(Sight(snapshot, "up", ""))
    assert ask(server, host="evil.example:80")[0].status == 421
    assert ask(server, host="localhost:8787")[0].status == 200
    assert ask(server, host="[")[0].status == 421, "no address at all"
    assert ask(serve(Sight(snapshot, "up", ""), "0.0.0.0"), host="gpu-7:8787")[0].status == 200


def test_many_updates_are_thinned_and_keep_their_mean():
    lines = [{"version": v, "reward": v % 2, "staleness": {"1": 2}} for v in range(1000)]
    points = web.thinned(lines)
    assert len(points) == 200 and points[-1]["version"] == 999
    assert sum(p["reward"] for p in points) / 200 == pytest.approx(0.5)
    assert points[0]["staleness"] == {"1": 10} and points[0]["brier"] is None


def test_the_page_is_also_at_the_loopback_of_ipv6(snapshot, serve):
    there = Path("/proc/net/if_inet6")
    if not there.exists() or "0" * 31 + "1" not in there.read_text():
        pytest.skip("no IPv6 here")
    server = serve(Sight(snapshot, "up", ""), "::1")
    assert server.loopback and server.url == f"http://[::1]:{server.server_port}/"
    with urllib.request.urlopen(server.url, timeout=30) as answer:
        assert answer.status == 200


def test_a_port_that_no_address_has_is_refused(headrace):
    code, _, error = headrace("web", "shown", "--port", "70000")
    assert code == 2 and "70000 is not in the range 0<=x<=65535" in error


def test_a_port_that_is_taken_is_one_clear_message(serve):
    server = serve(Sight(None, "waits", ""))
    with pytest.raises(HeadraceError, match="choose another --port"):
        web.Server(server.config, None, "127.0.0.1", server.server_port)


@pytest.fixture
def command(headrace):
    """`headrace web` of a run that was never up: the process and its URL."""
    headrace("init", "shown", "--recipe", "demo")
    open_folder(load("shown.toml"))
    argv = [sys.executable, "-u", "-m", "pipeline.cli", "web", "shown", "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        yield process, process.stdout.readline().split(" at ")[1].split()[0]
        process.kill()


def test_the_command_serves_until_it_is_interrupted(command):
    process, url = command
    with urllib.request.urlopen(f"{url}state.json", timeout=30) as answer:
        found = json.load(answer)
    assert found["state"] == "waits" and "version" not in found
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130


@pytest.mark.skipif(chromium() is None, reason=MISSING)
def test_a_page_whose_server_is_gone_says_so(command):
    process, url = command

    async def look():
        async with browser() as open_page:
            page = await open_page(url, 390, 844)
            await page.until("document.getElementById('said').textContent.includes('was never up here')")
            process.kill()
            await page.until("document.getElementById('said').textContent.includes('server (headrace web) does not')")

    asyncio.run(look())


WIDTHS = [(390, 844), (1280, 800)]
# names of the elements that reach beyond the screen
BEYOND = """[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 0.5
            && getComputedStyle(e).display !== 'none').map(e => e.tagName + ' ' + e.className)"""


@pytest.mark.skipif(chromium() is None, reason=MISSING)
@pytest.mark.parametrize("client", ["redis"], indirect=True)
def test_the_page_is_whole_at_two_widths_in_both_schemes(snapshot, serve, tmp_path):
    server = serve(Sight(snapshot, "up", ""))

    async def look():
        async with browser() as open_page:
            for width, height in WIDTHS:
                for dark in (False, True):
                    page = await open_page(server.url, width, height, dark)
                    await page.until("!document.getElementById('picture').hidden")
                    assert await page.evaluate(BEYOND) == [] and page.errors == []
                    assert await page.evaluate("document.documentElement.scrollWidth") == width
                    shown = await page.evaluate("document.body.innerText")
                    for expected in (
                        "version 1 of 60",
                        "1 + 0 of 4",
                        "0 + 2 of 4",
                        "no answer to /model_info",
                        "v39",
                        "75.0 %",
                    ):
                        assert expected in shown
                    shot = tmp_path / f"{width}-{dark}.png"
                    await page.screenshot(shot)
                    assert shot.read_bytes().startswith(b"\x89PNG")
        light, dark = ((tmp_path / f"1280-{dark}.png").read_bytes() for dark in (False, True))
        assert light != dark

    asyncio.run(look())


@pytest.mark.skipif(chromium() is None, reason=MISSING)
@pytest.mark.parametrize("client", ["redis"], indirect=True)
def test_the_page_says_what_it_cannot_show(snapshot, serve):
    states = [
        (
            Sight(None, "waits", "`headrace up` prepares the run"),
            "not there yet",
            "`headrace up` prepares the run",
            False,
        ),
        (Sight(snapshot, "away", "Redis does not answer for 3 s"), "Redis away", "Redis does not answer for 3 s", True),
        (Sight(snapshot, "finished", "all 60 updates are made"), "finished", "all 60 updates are made", True),
    ]
    server = serve(states[0][0])

    async def look():
        async with browser() as open_page:
            page = await open_page(server.url, 390, 844)
            for sight, state, said, whole in states:
                server.onlooker.sight = sight  # an open page follows by itself
                await page.until(f"document.getElementById('state').textContent === '{state}'")
                assert await page.evaluate("document.getElementById('said').textContent") == said
                assert await page.evaluate("!document.getElementById('picture').hidden") == whole

    asyncio.run(look())
