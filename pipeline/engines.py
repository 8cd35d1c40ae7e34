"""Administration of one SGLang server over its HTTP API: is it alive, what does it serve, load weights, prove them.

    Engine(url) .label()             what the server says it serves; it says whatever it was told
                .generates(token)    its scheduler lives: one token generated, and the label it came with
                .drain()             its requests have ended
                .load(folder, label) /update_weights_from_disk, the cache flushed; running requests: `policy`
                .verify(manifest, …) the log-probs of the manifest's probe tokens are the trainer's
                .bring(folder, …)    all of it: afterwards the engine serves these weights, proven

    policy   running requests                                   their replies
    drain    finish first; later ones wait for the new weights  whole, of the old weights
    interrupt  stop now                                         a part, finish_reason "abort", of the old weights
    retract  go on under the new weights, their cache anew      whole, in spans of both

Every call has a time limit. Whatever goes wrong is one EngineFailed whose code says which promise was broken.
"""

import contextlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.engine_model import difference
from pipeline.errors import Coded
from pipeline.secrets import API_KEY, authorization, secret
from pipeline.weights import Label, Manifest, read_manifest

# Nats, the largest difference of engine and trainer, whose kernels round differently. In bfloat16 that is much for an
# unlikely token: SmolLM2-135M's largest of 31 is 0.57 in SGLang, and 0.41 in transformers against its own float32.
TOLERANCE = {"float32": 1e-3, "bfloat16": 1.0}
REQUEST_TIMEOUT_S = 30.0
ALIVE_S = 5.0
BUSY_S = 0.05
PAUSES = {"drain": "retract", "interrupt": "abort", "retract": "retract"}  # SGLang's words
LOADS, MODEL_INFO = "/v1/loads", "/model_info"
UNAUTHORIZED = 401
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # engines are never behind a proxy


class EngineFailed(Coded, RuntimeError):
    """code: UNREACHABLE (no connection), SLOW (no answer in time), REFUSED (an error answered), REPLY (not understood),
    LABEL (serves other weights than asked for), PROBE (computes with other weights than its label says), MODEL (runs
    another model than the run's), KEY (asks for another API key than ours)."""


class Engine:
    """One server. Not for rollouts: workers have an asynchronous client of their own."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json", **authorization()}

    def label(self) -> str:
        """The label of the weights it serves, as it says."""
        return _text(self.call("GET", MODEL_INFO), "weight_version")

    def generates(self, token: int) -> str:
        """Have it generate one token; the label of the weights that did. /health is 200 while the scheduler is dead."""
        return _text(self._generate([token], 1, ALIVE_S), "weight_version")

    def bring(
        self,
        folder: Path,
        run: str,
        timeout_s: float,
        tolerance: float | None = None,
        policy: str = "drain",
        transfer: Callable[[], bool] | None = None,
    ) -> Manifest:
        """Make the engine serve the published weights in `folder`, and prove it; what it serves already is only proven.

        Raises BadWeights, or EngineFailed: then nothing may be routed to the engine.
        """
        manifest = read_manifest(folder)
        self._resume()  # whoever paused it may have been killed meanwhile
        info = self.call("GET", MODEL_INFO)
        if other := difference(info, folder):
            raise EngineFailed(
                "MODEL",
                f"{self.url} runs another model ({info.get('model_path')}): {other}; start it with the run's model, "
                "or `headrace engines remove` it",
            )
        if _text(info, "weight_version") == str(manifest.label(run)):
            try:
                return self.verify(manifest, run, tolerance)
            except EngineFailed as error:
                if error.code not in ("LABEL", "PROBE"):
                    raise
        self.load(folder, manifest.label(run), timeout_s, policy, transfer)
        return self.verify(manifest, run, tolerance)

    def load(
        self,
        folder: Path,
        label: Label | str,
        timeout_s: float,
        policy: str = "drain",
        transfer: Callable[[], bool] | None = None,
    ) -> None:
        """Serve the weights in `folder` as `label`; requests that come meanwhile wait for them.

        timeout_s  of the load, with what the policy has it wait for
        transfer   brings the weights in another way, while the engine stands still; False: it could not
        The path is read by the server: on another host it must be the same shared file system.
        """
        if policy == "drain" and transfer is None:
            self._load(folder, label, timeout_s)
            return
        try:
            self._stand_still(policy, timeout_s)
            if transfer is None or not transfer():
                self._load(folder, label, timeout_s)
        except Exception:
            with contextlib.suppress(EngineFailed):  # of the two failures the first says what is wrong
                self._resume()
            raise
        self._resume()

    def drain(self, timeout_s: float) -> None:
        """Wait until its requests have ended; whoever calls has seen to it that no more come."""
        deadline = time.monotonic() + timeout_s
        while busy := self._requests():
            if time.monotonic() > deadline:
                raise EngineFailed("SLOW", f"{self.url}: {busy} requests have not ended within {timeout_s:g} s")
            time.sleep(BUSY_S)

    def _stand_still(self, policy: str, timeout_s: float) -> None:
        if policy == "drain":
            self.drain(timeout_s)
        if policy == "interrupt":
            self._send("POST", "/abort_request", {"rid": "", "abort_all": True})
            time.sleep(BUSY_S)  # the pause looks once a second whether all have stopped: at first, if it looks later
        self.call("POST", "/pause_generation", {"mode": PAUSES[policy]}, timeout_s)

    def _requests(self) -> int:
        """How many it has, running or waiting."""
        try:
            return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in self.call("GET", LOADS)["loads"])
        except (KeyError, TypeError) as error:
            raise EngineFailed("REPLY", f"{self.url}{LOADS}: expected numbers of requests, found {error!r}") from None

    def _load(self, folder: Path, label: Label | str, timeout_s: float) -> None:
        request = {"model_path": str(folder.resolve()), "weight_version": str(label), "flush_cache": True}
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                reply = self.call("POST", "/update_weights_from_disk", request, timeout_s)
                break
            except EngineFailed as error:
                # a request that was just answered may count as running a moment longer, and its cache stays: load again
                if "cache was not flushed" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(BUSY_S)
        if reply.get("success") is not True:
            raise EngineFailed("REFUSED", f"{self.url} did not load {folder}: {reply.get('message', reply)!s:.500}")

    def _resume(self) -> None:
        self.call("POST", "/continue_generation", {"torch_empty_cache": False})

    def verify(self, manifest: Manifest, run: str, tolerance: float | None = None) -> Manifest:
        """`manifest`. Raises EngineFailed unless the engine serves exactly the weights of `manifest`: label and probe.

        tolerance  nats, largest difference of a log-prob; None: 1e-3 for float32 weights, 1 for bfloat16
        """
        tolerance = TOLERANCE[manifest.dtype] if tolerance is None else tolerance
        meta = self._generate(list(manifest.probe_tokens), 1)
        expected, found = str(manifest.label(run)), _text(meta, "weight_version")
        if found != expected:
            raise EngineFailed("LABEL", f"{self.url} serves {found!r}, expected {expected!r}")
        try:
            rows = meta["input_token_logprobs"]
            tokens, logprobs = [int(row[1]) for row in rows], [float(row[0]) for row in rows[1:]]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise EngineFailed("REPLY", f"{self.url}: expected the probe's log-probs, found {error!r}") from None
        if tokens != list(manifest.probe_tokens):
            raise EngineFailed("REPLY", f"{self.url}: log-probs of other tokens than the probe's came back")
        worst = max(abs(a - b) for a, b in zip(logprobs, manifest.probe_logprobs, strict=True))
        if not worst <= tolerance:  # NaN must fail too
            raise EngineFailed(
                "PROBE",
                f"{self.url} says it serves {expected}, but its log-probs of the probe tokens are {worst:.3g} nats "
                f"from the trainer's, expected at most {tolerance:g}: it computes with other weights, or "
                "engines.probe_tolerance is too tight for its kernels",
            )
        return manifest

    def _generate(self, tokens: list[int], count: int, timeout_s: float = REQUEST_TIMEOUT_S) -> dict[str, Any]:
        """What the server says about `tokens`, and that it really continues them by `count`."""
        # as most rollouts: SGLang samples a batch in another way, by seed too, once one of its requests has a top_k
        sampling = {"max_new_tokens": count, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "ignore_eos": True}
        request = {"input_ids": tokens, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
        reply = self.call("POST", "/generate", request, timeout_s)
        meta = reply.get("meta_info")
        if not isinstance(meta, dict):
            raise EngineFailed("REPLY", f"{self.url}/generate: expected meta_info in the reply, found none")
        if (meta.get("finish_reason") or {}).get("type") == "abort":
            raise EngineFailed("REFUSED", f"{self.url}/generate: the request was aborted: {meta['finish_reason']}")
        if len(generated := reply.get("output_ids") or ()) != count:
            raise EngineFailed("REPLY", f"{self.url}/generate: expected {count} token, found {len(generated)}")
        return meta

    def call(
        self, method: str, path: str, request: dict | None = None, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> dict[str, Any]:
        """Any of the server's calls that answers with JSON."""
        text = self._send(method, path, request, timeout_s)
        try:
            reply = json.loads(text)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise EngineFailed("REPLY", f"{self.url}{path}: expected a JSON object, found {text[:200]!r}")
        return reply

    def _send(self, method: str, path: str, request: dict | None, timeout_s: float = REQUEST_TIMEOUT_S) -> bytes:
        body = None if request is None else json.dumps(request).encode()
        sent = urllib.request.Request(self.url + path, body, self._headers, method=method)
        try:
            with DIRECT.open(sent, timeout=timeout_s) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            if error.code == UNAUTHORIZED:
                raise EngineFailed("KEY", wrong_key(self.url)) from None
            raise EngineFailed("REFUSED", f"{self.url}{path} answered {error.code}: {said:.500}") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)  # of what broke the connection, urllib tells only there
            if isinstance(why, TimeoutError):
                raise EngineFailed("SLOW", f"{self.url}{path}: no answer within {timeout_s:g} s") from None
            raise EngineFailed("UNREACHABLE", f"{self.url}{path}: {why or type(why).__name__}") from None


def wrong_key(url: str) -> str:
    ours = "this process brings another" if secret(API_KEY) else "this process has none"
    return (
        f"{url} asks for an API key, and {ours}; give {API_KEY}, or a file that {API_KEY}_FILE names, the one that the "
        "server was started with (--api-key)"
    )


def _text(reply: dict[str, Any], name: str) -> str:
    value = reply.get(name)
    if not isinstance(value, str):
        raise EngineFailed("REPLY", f"expected {name} in the server's reply, found {value!r:.80}: is it SGLang?")
    return value
