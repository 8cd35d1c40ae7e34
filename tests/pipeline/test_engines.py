"""Engines: what matters runs on the real SGLang server; a scripted server only plays the faults it never has."""

import json
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from pipeline.engines import Engine, EngineFailed
from pipeline.weights import BadWeights, read_manifest, write_manifest


@pytest.mark.sglang
def test_an_engine_serves_what_was_published_and_proves_it(engine, published):
    for version in (1, 2):
        manifest = engine.bring(published / f"weights/{version}-a", "demo", timeout_s=60)
        assert manifest.version == version and engine.label() == str(manifest.label("demo"))


@pytest.mark.sglang
def test_other_weights_under_the_right_label_are_caught_and_replaced(engine, published):
    one, two = published / "weights/1-a", published / "weights/2-a"
    manifest = read_manifest(one)
    engine.load(two, manifest.label("demo"), timeout_s=60)
    with pytest.raises(EngineFailed, match="computes with other weights") as caught:
        engine.verify(manifest, "demo")
    assert caught.value.code == "PROBE"
    engine.bring(one, "demo", timeout_s=60)
    engine.verify(manifest, "demo")


@pytest.mark.sglang
def test_the_right_weights_under_another_label_are_caught(engine, published):
    manifest = read_manifest(published / "weights/1-a")
    engine.load(published / "weights/1-a", manifest.label("other"), timeout_s=60)
    with pytest.raises(EngineFailed, match=r"serves 'other:1:.*expected 'demo:1:") as caught:
        engine.verify(manifest, "demo")
    assert caught.value.code == "LABEL"


@pytest.mark.sglang
def test_a_folder_that_cannot_be_loaded_leaves_the_old_weights_and_says_why(engine, published, tmp_path):
    manifest = engine.bring(published / "weights/1-a", "demo", timeout_s=60)
    empty = write_manifest(tmp_path, 3, range(32), [-1.0] * 31, "float32")
    with pytest.raises(EngineFailed, match="update_weights_from_disk answered 400") as caught:
        engine.load(tmp_path, empty.label("demo"), timeout_s=60)
    assert caught.value.code == "REFUSED"
    engine.verify(manifest, "demo")


@pytest.mark.sglang
def test_weights_of_another_model_are_not_given_to_an_engine_whose_scheduler_they_would_end(
    engine, published, tmp_path
):
    ours = json.loads((published / "weights/1-a/config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(ours | {"hidden_size": 2 * ours["hidden_size"]}))
    write_manifest(tmp_path, 3, range(32), [-1.0] * 31, "float32")
    with pytest.raises(EngineFailed, match="hidden_size is 128, in the run's 256; start it with the run's") as caught:
        engine.bring(tmp_path, "demo", timeout_s=60)
    assert caught.value.code == "MODEL"
    engine.bring(published / "weights/1-a", "demo", timeout_s=60)


@pytest.mark.sglang
def test_new_weights_wait_for_running_requests(engine, published):
    engine.bring(published / "weights/1-a", "demo", timeout_s=60)
    replies = []

    def generate():
        request = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 256, "ignore_eos": True}}
        sent = urllib.request.Request(f"{engine.url}/generate", json.dumps(request).encode())
        sent.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(sent, timeout=60) as reply:
            replies.append(json.load(reply)["meta_info"])

    thread = threading.Thread(target=generate)
    thread.start()
    time.sleep(0.1)
    new = engine.bring(published / "weights/2-a", "demo", timeout_s=60)
    thread.join()
    assert [span["version"].split(":")[1] for span in replies[0]["weight_versions"]] == ["1"]
    assert engine.label() == str(new.label("demo"))


def test_weights_without_a_manifest_are_never_loaded(scripted, tmp_path):
    engine, calls = scripted({})
    with pytest.raises(BadWeights):
        engine.bring(tmp_path, "demo", timeout_s=1)
    assert calls == []


@pytest.fixture
def scripted(http_server):
    """scripted({path: (status, body) | seconds of silence}) -> Engine of a server that answers so, its calls."""

    def start(answers):
        calls = []

        def answer(path, request):
            if path == "/continue_generation":
                return 200, {"status": "ok"}
            calls.append((path, request))
            return answers[path]

        return Engine(http_server(answer)), calls

    return start


@pytest.fixture
def folder(tmp_path):
    """Weights of version 7 with a probe whose every log-prob is -1."""
    (tmp_path / "config.json").write_text("{}")
    write_manifest(tmp_path, 7, range(32), [-1.0] * 31, "float32")
    return tmp_path


def reply(label, logprob):
    rows = [[None, 0, None], *([logprob, token, None] for token in range(1, 32))]
    meta = {"weight_version": str(label), "finish_reason": {"type": "length"}, "input_token_logprobs": rows}
    return {"output_ids": [7], "meta_info": meta}


def test_an_engine_that_says_yes_without_loading_is_caught(scripted, folder):
    label = read_manifest(folder).label("demo")
    answers = {
        "/model_info": (200, {"weight_version": "demo:6:0123456789abcdef"}),
        "/update_weights_from_disk": (200, {"success": True, "message": "Succeeded"}),
        "/generate": (200, reply("demo:6:0123456789abcdef", -1.0)),
    }
    engine, calls = scripted(answers)
    with pytest.raises(EngineFailed) as caught:
        engine.bring(folder, "demo", timeout_s=1)
    assert caught.value.code == "LABEL"
    assert calls[1] == (
        "/update_weights_from_disk",
        {"model_path": str(folder), "weight_version": str(label), "flush_cache": True},
    )
    answers["/generate"] = (200, reply(label, -1.5))  # now it takes the label, and still not the weights
    with pytest.raises(EngineFailed) as caught:
        engine.bring(folder, "demo", timeout_s=1)
    assert caught.value.code == "PROBE"


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("REFUSED", (500, {"error": "boom"})),
        ("REFUSED", (400, {"success": False, "message": "no such folder"})),
        ("REFUSED", (200, {"success": False, "message": "no such folder"})),
        ("REPLY", (200, b"<html>")),
        ("REPLY", (200, [])),
        ("SLOW", 5),
    ],
)
def test_a_load_that_fails_is_one_error_with_a_code(scripted, folder, code, answer):
    engine, _ = scripted({"/update_weights_from_disk": answer})
    with pytest.raises(EngineFailed) as caught:
        engine.load(folder, read_manifest(folder).label("demo"), timeout_s=0.2)
    assert caught.value.code == code and engine.url in str(caught.value)


@pytest.mark.parametrize("policy", ["interrupt", "retract"])
@pytest.mark.parametrize("fault", ["/update_weights_from_disk", "/pause_generation"])
def test_requests_go_on_although_a_load_failed_in_the_pause(scripted_engine, folder, policy, fault):
    server = scripted_engine()
    server.faults[fault] = (500, {"error": "boom"})
    with pytest.raises(EngineFailed, match=f"{fault} answered 500"):
        Engine(server.url).load(folder, "demo", timeout_s=1, policy=policy)
    assert server.calls[-1] == "continue_generation"


def test_an_engine_that_drains_stands_still_for_a_transfer_once_its_requests_have_ended(scripted_engine, folder):
    server, moments = scripted_engine(), []
    server.faults["/v1/loads"] = (200, {"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 2}]})
    with pytest.raises(EngineFailed, match="3 requests have not ended") as caught:
        Engine(server.url).load(folder, "demo", timeout_s=0.1, transfer=lambda: moments.append("too early"))
    assert caught.value.code == "SLOW" and server.calls[-1] == "continue_generation"
    del server.faults["/v1/loads"]
    Engine(server.url).load(folder, "demo", timeout_s=5, transfer=lambda: moments.append(server.calls[-1]) or True)
    assert moments == ["pause_generation"] and server.loads == []
    Engine(server.url).load(folder, "demo", timeout_s=5, transfer=lambda: False)
    assert server.loads == [7], "what could not be transferred comes from disk"


def test_weights_whose_cache_was_not_flushed_are_loaded_again(http_server, folder):
    busy = (400, {"success": False, "message": "Weights were updated, but the cache was not flushed because …"})
    answers = [busy, busy, (200, {"success": True, "message": "Succeeded"})]
    engine = Engine(http_server(lambda path, request: answers.pop(0)))
    engine.load(folder, "demo", timeout_s=5)
    assert answers == []
    answers += [busy] * 100
    with pytest.raises(EngineFailed, match="cache was not flushed"):
        engine.load(folder, "demo", timeout_s=0.2)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"output_ids": [7], "meta_info": {}},
        reply("LABEL", -1.0) | {"output_ids": []},
        {"output_ids": [7], "meta_info": reply("LABEL", -1.0)["meta_info"] | {"input_token_logprobs": None}},
        {"output_ids": [7], "meta_info": reply("LABEL", -1.0)["meta_info"] | {"input_token_logprobs": [[None, 0, 1]]}},
        reply("LABEL", None),
    ],
)
def test_a_probe_that_is_not_answered_fully_proves_nothing(scripted, folder, body):
    manifest = read_manifest(folder)
    text = json.dumps(body).replace("LABEL", str(manifest.label("demo")))
    engine, _ = scripted({"/generate": (200, text.encode())})
    with pytest.raises(EngineFailed) as caught:
        engine.verify(manifest, "demo")
    assert caught.value.code == "REPLY"


def test_a_probe_of_nan_proves_nothing(scripted, folder):
    manifest = read_manifest(folder)
    engine, _ = scripted({"/generate": (200, reply(manifest.label("demo"), float("nan")))})
    with pytest.raises(EngineFailed) as caught:
        engine.verify(manifest, "demo")
    assert caught.value.code == "PROBE"


def test_differences_of_rounding_are_accepted(scripted, folder):
    manifest = read_manifest(folder)
    engine, _ = scripted({"/generate": (200, reply(manifest.label("demo"), -1.0005))})
    engine.verify(manifest, "demo")
    with pytest.raises(EngineFailed):
        engine.verify(manifest, "demo", tolerance=1e-4)


def test_a_server_that_is_silent_is_slow_and_one_that_is_gone_unreachable_within_the_time_limit(scripted):
    engine, _ = scripted({"/model_info": 30, "/update_weights_from_disk": 30})
    begun = time.monotonic()
    with pytest.raises(EngineFailed, match=r"no answer within 0\.2 s") as caught:
        engine.load(Path("weights"), "demo", timeout_s=0.2)
    assert caught.value.code == "SLOW"
    with pytest.raises(EngineFailed, match="refused") as caught:
        Engine("http://127.0.0.1:1").label()
    assert caught.value.code == "UNREACHABLE" and time.monotonic() - begun < 5


def test_an_engine_is_asked_directly_whatever_proxy_this_machine_has(scripted, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    engine, _ = scripted({"/model_info": (200, {"weight_version": "base"})})
    assert engine.label() == "base"
